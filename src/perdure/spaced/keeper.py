"""One process between the supervisor and each command: whatever the command starts stays below it until it is dead.

A keeper is a child subreaper (prctl(2)), so a daemon that forks twice and leaves its session is inherited by the keeper and by nobody else: the
processes of a call are exactly the keeper's descendants, without markers that a command could drop. The keeper leaves when it has no
child any more, so the end of its report pipe proves that the whole tree is dead and reaped. When the supervisor dies before it, which
a pipe that only the supervisor can write to tells, the keeper kills the tree. Rejected: making the command itself the subreaper (it would be
handed children it knows nothing of), walking sessions (setsid escapes), and PR_SET_PDEATHSIG (it follows the thread that forked).

It is forked from a threaded supervisor, so it touches nothing that another thread may have held. Elsewhere than on Linux orphans escape to init,
and the command's process group is all there is to go by.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
from typing import Callable, Mapping, Sequence

from perdure.spaced import processes

_SET_CHILD_SUBREAPER = 36
_SET_NAME = 15
_POLITE_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEFAULT_SIGNALS = (*_POLITE_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
_ABOVE_STDIO = 100
_libc = ctypes.CDLL(None, use_errno=True)


def subreaper() -> None:
    """Orphaned descendants of this process become its children (Linux)."""
    if sys.platform == "linux" and _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def rename(name: str) -> None:
    """What `pkill` and `killall` see (Linux): a command that ends every `python` means others."""
    if sys.platform == "linux":
        _libc.prctl(_SET_NAME, name.encode(), 0, 0, 0)


def keep(arguments: Sequence[str], environment: Mapping[str, str], output_fd: int, life: int) -> tuple[int, int]:
    """Run the program in the current directory, in a session of its own, stdout and stderr to `output_fd`; (keeper's pid, report pipe).

    `life` is the reading end of a pipe whose other end the supervisor alone has. The report brings `pid N`, then `exit N` (negative: the
    signal) when the program itself has ended, and ends when all it left has.
    """
    report, report_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _in_child(lambda: _keep(arguments, environment, output_fd, report_end, life))
    os.close(report_end)
    return pid, report


def _in_child(body: Callable[[], None]) -> None:
    """Nothing of the supervisor may run on in a forked child, whatever happens there."""
    try:
        body()
        os._exit(0)
    finally:
        os._exit(70)


def _keep(arguments: Sequence[str], environment: Mapping[str, str], output_fd: int, report: int, life: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in _POLITE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    subreaper()
    rename("spaced-keeper")
    program = _spawn(arguments, environment, output_fd, report)
    report, life = _only(report, life)
    _report(report, b"pid %d\n" % program)
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(life, select.POLLIN)
    while _reap(report, program):
        ready = [fd for fd, _ in poll.poll(None)]
        if wake in ready:
            os.read(wake, 4096)
        if life in ready:
            for row in processes.descendants(processes.table(), [os.getpid()]):
                processes.send(row, signal.SIGKILL)


def _spawn(arguments: Sequence[str], environment: Mapping[str, str], output_fd: int, report: int) -> int:
    """The program's pid. By posix_spawn(3), since a second fork of all this memory costs as much as the program does.

    It inherits the three standard descriptors and no other: whatever Python opens is close-on-exec.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    standard = [(os.POSIX_SPAWN_DUP2, nothing, 0), (os.POSIX_SPAWN_DUP2, output_fd, 1), (os.POSIX_SPAWN_DUP2, output_fd, 2)]
    try:
        return os.posix_spawn(
            arguments[0], list(arguments), dict(environment), file_actions=standard, setsid=True, setsigdef=_DEFAULT_SIGNALS
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in the command
        os.write(output_fd, ("%s: %s\n" % (arguments[0], getattr(error, "strerror", error))).encode())
        _report(report, b"exit 127\n")
        os._exit(0)


def _reap(report: int, program: int) -> bool:
    """Bury the dead; False when no child is left."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if ended == 0:
            return True
        if ended == program:
            _report(report, b"exit %d\n" % os.waitstatus_to_exitcode(status))


def _report(report: int, line: bytes) -> None:
    """The operation may have ended already, or the supervisor: then nobody listens."""
    with contextlib.suppress(BrokenPipeError):
        os.write(report, line)


def _only(*kept: int) -> list[int]:
    """Close every other descriptor; the kept ones under their new numbers."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE_STDIO) for fd in kept]
    low = [os.dup2(fd, number) for number, fd in enumerate(high)]
    os.closerange(len(low), os.sysconf("SC_OPEN_MAX"))
    return low
