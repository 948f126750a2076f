"""Named instants, so that a test can stop a process at every one of them.

`step(name)` costs one comparison where nobody listens. With `PERDURE_STEPS=<role>:<n>:<action>:<file>` in the environment, a process of that role
appends `<role> <n> <name>` to the file at each step, and at its n-th (from 1) does the action once; `<name>@<n>`, with a dot for each colon of the name, counts
the steps of that name alone. The actions: `kill` (SIGKILL; PID 1 of a
namespace can't be killed from inside and leaves by `_exit`, which is as sudden), `stop` (SIGSTOP) or `trace` (nothing).
The file `<file>.fired` marks that the action was taken, so that a successor process lives on. PID 1 can't be stopped from inside either: it stays at
the step until the file `<file>.go` is there, so that a test may stop it from outside meanwhile.
"""

import itertools
import os
import signal
import time
from typing import Callable, Optional

ENVIRONMENT = "PERDURE_STEPS"
_hook: Optional[Callable[[str], None]] = None


def step(name: str) -> None:
    if _hook is not None:
        _hook(name)


def listen(role: str) -> None:
    """Called once by a process that plays `role` (`driver` or `spaced`)."""
    global _hook
    setting = os.environ.get(ENVIRONMENT)
    if not setting:
        return
    wanted, at, action, path = setting.split(":", 3)
    named, _, nth = at.rpartition("@")
    counter, counter_of_name = itertools.count(1), itertools.count(1)

    def due(name: str, count: int) -> bool:
        if not named:
            return count == int(nth)
        return name.replace(":", ".") == named and next(counter_of_name) == int(nth)

    def hook(name: str) -> None:
        count = next(counter)  # many threads take steps; no number may be skipped
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, ("%s %d %s\n" % (role, count, name)).encode())
        finally:
            os.close(fd)
        if role == wanted and due(name, count) and action != "trace":
            _fire(path + ".fired", action)

    _hook = hook


def _fire(marker: str, action: str) -> None:
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    if action == "stop" and os.getpid() == 1:
        while not os.path.exists(marker[: -len(".fired")] + ".go"):
            time.sleep(0.001)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif os.getpid() == 1:
        os._exit(137)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
