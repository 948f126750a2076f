"""One process between the supervisor and each command: whatever the command starts stays below it until it is dead.

A keeper is a child subreaper (prctl(2)), so a daemon that forks twice and leaves its session is inherited by the keeper and by nobody else: the
processes of a call are exactly the keeper's descendants, without markers that a command could drop. `gone`, which the keeper says when it
has no child any more, or the end of its channel proves that the whole tree is dead and reaped. When the supervisor dies before it, which
a pipe that only the supervisor can write to tells, the keeper kills the tree. Rejected: making the command itself the subreaper (it would be
handed children it knows nothing of), walking sessions (setsid escapes), and PR_SET_PDEATHSIG (it follows the thread that forked).

A keeper whose command left nothing behind waits for the next one: forking the supervisor costs more than the program does. It is forked
from a threaded supervisor, so it touches nothing that another thread may have held. Elsewhere than on Linux orphans escape to init,
and the command's process group is all there is to go by.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Callable, Mapping, Sequence

from perdure.spaced import confine, processes

_SET_CHILD_SUBREAPER = 36
_SET_NAME = 15
_POLITE_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEFAULT_SIGNALS = (*_POLITE_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
_ABOVE_STDIO = 100
_SIZE = struct.Struct("!I")
_libc = ctypes.CDLL(None, use_errno=True)


def subreaper() -> None:
    """Orphaned descendants of this process become its children (Linux)."""
    if sys.platform == "linux" and _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def rename(name: str) -> None:
    """What `pkill` and `killall` see (Linux): a command that ends every `python` means others."""
    if sys.platform == "linux":
        _libc.prctl(_SET_NAME, name.encode(), 0, 0, 0)


class Keeper:
    """The supervisor's end of a keeper, which serves one command at a time.

    `life` is the reading end of a pipe whose other end the supervisor alone has. The channel brings `pid N`, then `exit N` (negative: the
    signal) when the program itself has ended, and `gone` when all that it left has: then the keeper may be asked again. Its end says as much
    of a keeper that was killed. Once the channel is closed here the keeper leaves as soon as it has no child.
    """

    def __init__(self, life: int) -> None:
        self.channel, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            _in_child(lambda: _keep(theirs.fileno(), life))
        theirs.close()

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], output_fd: int) -> None:
        """The program in the current directory, in a session of its own, stdout and stderr to `output_fd`. ConnectionError if nobody is there."""
        request = json.dumps([list(arguments), dict(environment)]).encode()
        data = _SIZE.pack(len(request)) + request
        sent = socket.send_fds(self.channel, [data], [output_fd])
        self.channel.sendall(data[sent:])

    def receive(self) -> bytes:
        """What it reports, as far as it is there; empty at the end."""
        try:
            return self.channel.recv(4096)
        except ConnectionError:
            return b""


def _in_child(body: Callable[[], None]) -> None:
    """Nothing of the supervisor may run on in a forked child, whatever happens there."""
    try:
        body()
        os._exit(0)
    finally:
        os._exit(70)


def _keep(channel_fd: int, life: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in _POLITE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    subreaper()
    rename("spaced-keeper")
    channel_fd, life = _only(channel_fd, life)
    confine.enter()
    channel = socket.socket(fileno=channel_fd)
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(life, select.POLLIN)
    while True:
        program = _begin(channel)
        while _reap(channel, program):
            ready = [fd for fd, _ in poll.poll(None)]
            if wake in ready:
                os.read(wake, 4096)
            if life in ready:
                for row in processes.descendants(processes.table(), [os.getpid()]):
                    processes.send(row, signal.SIGKILL)


def _begin(channel: socket.socket) -> int:
    """The pid of the next program that is asked for, 0 if it can't be run; leaves when the supervisor has closed the channel."""
    head, fds, _, _ = socket.recv_fds(channel, _SIZE.size, 1)
    arguments, environment = json.loads(_exactly(channel, *_SIZE.unpack(head + _exactly(channel, _SIZE.size - len(head)))))
    (output_fd,) = fds
    os.set_inheritable(output_fd, False)
    try:
        program = _spawn(arguments, environment, output_fd)
        _report(channel, b"pid %d\n" % program)
        return program
    except (OSError, ValueError) as error:  # ValueError: a NUL in the command
        os.write(output_fd, ("%s: %s\n" % (arguments[0], getattr(error, "strerror", error))).encode())
        _report(channel, b"exit 127\n")
        return 0
    finally:
        os.close(output_fd)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


def _spawn(arguments: Sequence[str], environment: Mapping[str, str], output_fd: int) -> int:
    """The program's pid. By posix_spawn(3), since a second fork of all this memory costs as much as the program does.

    It inherits the three standard descriptors and no other: whatever Python opens is close-on-exec.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    standard = [(os.POSIX_SPAWN_DUP2, nothing, 0), (os.POSIX_SPAWN_DUP2, output_fd, 1), (os.POSIX_SPAWN_DUP2, output_fd, 2)]
    try:
        return os.posix_spawn(
            arguments[0], list(arguments), dict(environment), file_actions=standard, setsid=True, setsigdef=_DEFAULT_SIGNALS
        )
    finally:
        os.close(nothing)


def _reap(channel: socket.socket, program: int) -> bool:
    """Bury the dead; False when no child is left."""
    told = b""
    try:
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                return True
            if ended == program:
                told += b"exit %d\n" % os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        told += b"gone\n"
        return False
    finally:
        if told:
            _report(channel, told)


def _report(channel: socket.socket, lines: bytes) -> None:
    """The operation may have ended already, or the supervisor: then nobody listens."""
    with contextlib.suppress(ConnectionError):
        channel.sendall(lines)


def _only(*kept: int) -> list[int]:
    """Close every other descriptor; the kept ones under their new numbers."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE_STDIO) for fd in kept]
    low = [os.dup2(fd, number) for number, fd in enumerate(high)]
    os.closerange(len(low), os.sysconf("SC_OPEN_MAX"))
    return low
