"""Where things lie on this machine.

One home serves many sessions and processes at once:

    log.db  chunks.db  live.db          the store
    sessions/<session>/driver.lock      who drives (perdure.engine.lease)
    spaces/<session>/                   the state folder of its Space
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from perdure.record.errors import UsageError


def home_path(path: str | os.PathLike[str] | None = None) -> Path:
    """The home: `path`, else `$PERDURE_HOME`, else the platform's state directory. Not made here."""
    given = os.fspath(path) if path is not None else os.environ.get("PERDURE_HOME", "")
    if given:
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/perdure").expanduser()
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state or "~/.local/state").expanduser() / "perdure"


def driver_lock(home: Path, session: str) -> Path:
    folder = home / "sessions" / session
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "driver.lock"


def check_root(directory: str | os.PathLike[str], home: Path) -> Path:
    """The real path of a directory that can be a workspace. Raises UsageError with the remedy."""
    path = Path(directory).expanduser()
    if not path.exists():
        raise UsageError(f"{path} does not exist; make the directory first or name another with -C")
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; name the directory that holds it with -C")
    root = Path(os.path.realpath(path))
    if root == Path(root.anchor):
        raise UsageError("/ can't be a workspace; name a project's directory with -C")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(f"{root} can't be read and written by this user; change its permissions or name another directory")
    real_home = Path(os.path.realpath(home))
    if real_home.is_relative_to(root):
        raise UsageError(f"Perdure's home {real_home} lies inside of {root}; set PERDURE_HOME to a directory outside of it")
    if root.is_relative_to(real_home):
        raise UsageError(f"{root} lies inside of Perdure's home {real_home}; name a project's directory with -C")
    return root
