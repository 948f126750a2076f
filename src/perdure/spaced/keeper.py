"""One process between the supervisor and each command: whatever the command starts stays below it until it is dead.

A keeper is a child subreaper (prctl(2)), so a daemon that forks twice and leaves its session is inherited by the keeper and by nobody else: the
processes of a call are exactly the keeper's descendants, without markers that a command could drop. The keeper leaves when it has
no child any more, so the end of its report pipe proves that the whole tree is dead and reaped. Rejected: making the command itself the
subreaper (it would be handed children it knows nothing of) and walking sessions (setsid escapes).

It is forked from a threaded supervisor and therefore does nothing but system calls. Elsewhere than on Linux orphans escape to init, and the
command's process group is all there is to go by.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Callable, Mapping, Sequence

_SET_CHILD_SUBREAPER = 36
_CHILD_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
_libc = ctypes.CDLL(None, use_errno=True)


def subreaper() -> None:
    """Orphaned descendants of this process become its children (Linux)."""
    if sys.platform == "linux" and _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def keep(arguments: Sequence[str], environment: Mapping[str, str], output_fd: int) -> tuple[int, int]:
    """Run the program in the current directory, in a session of its own, stdout and stderr to `output_fd`; (keeper's pid, report pipe).

    The pipe brings `pid N`, then `exit N` (negative: the signal) when the program itself has ended, and ends when all it left has.
    """
    report, report_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _in_child(lambda: _keep(arguments, environment, output_fd, report_end))
    os.close(report_end)
    return pid, report


def _in_child(body: Callable[[], None]) -> None:
    """Nothing of the supervisor may run on in a forked child, whatever happens there."""
    try:
        body()
        os._exit(0)
    finally:
        os._exit(70)


def _keep(arguments: Sequence[str], environment: Mapping[str, str], output_fd: int, report: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in _CHILD_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    subreaper()
    program = os.fork()
    if program == 0:
        _in_child(lambda: _become(arguments, environment, output_fd))
    os.closerange(0, report)
    os.closerange(report + 1, os.sysconf("SC_OPEN_MAX"))
    os.write(report, b"pid %d\n" % program)
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if ended == program:
            os.write(report, b"exit %d\n" % os.waitstatus_to_exitcode(status))


def _become(arguments: Sequence[str], environment: Mapping[str, str], output_fd: int) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    try:
        os.execvpe(arguments[0], list(arguments), dict(environment))
    except OSError as error:
        os.write(2, ("%s: %s\n" % (arguments[0], error.strerror)).encode())
        os._exit(127)
