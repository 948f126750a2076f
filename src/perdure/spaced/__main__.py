"""`python -I -S <this folder> …`: the supervisor by its path, with nothing of the rest installed beside it.

A container gets this folder alone, and a host must not import what a workspace or a user's site-packages could replace. So the package
`perdure` is made here as an empty name over the folder above, and its own `__init__` never runs.
"""

import os
import sys
import types

if "perdure" not in sys.modules:
    package = types.ModuleType("perdure")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["perdure"] = package
    del sys.path[0]

from perdure.spaced.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
