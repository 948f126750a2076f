"""Whether a sandbox holds: a throw-away process, confined as a command is, tries to get out.

Each test is a name and whether it was passed; one that can't be carried out counts as failed. What the workspace's tree contributes (FIFOs, sockets,
hard links and mounts) is looked at by every capture instead, since it changes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
from typing import Any, Callable, Iterator

from perdure.spaced import confine
from perdure.spaced.errors import note_trace

NAMESPACES = ("user", "pid", "net", "ipc", "mnt")
_ADDRESSES = ((socket.AF_INET, ("192.0.2.1", 9)), (socket.AF_INET6, ("2001:db8::1", 9)))
"""Documentation's (RFC 5737, RFC 3849): nothing is there, and only a network says how to get there."""

_SWITCHES = ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/panic", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger")
_UNREACHABLE = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def run(sandbox: dict[str, Any]) -> dict[str, bool]:
    """`sandbox`: `hidden`, the state folder's mount, and `empty`, what covers it; `outside`, the namespaces of whoever made it; `read_only` and
    `binds`, what is mounted so.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            confine.enter()
            os.write(writing, json.dumps(_results(sandbox)).encode())
        except BaseException:
            note_trace()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return dict.fromkeys(TESTS, False) if not said else json.loads(said)


def _results(sandbox: dict[str, Any]) -> dict[str, bool]:
    return {name: _passed(test, sandbox) for name, test in TESTS.items()}


def _passed(test: Callable[[dict[str, Any]], bool], sandbox: dict[str, Any]) -> bool:
    try:
        return test(sandbox)
    except Exception:
        note_trace()
        return False


def _capabilities(sandbox: dict[str, Any]) -> bool:
    """None in any set, and no way to new ones."""
    with open("/proc/self/status") as file:
        said = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    sets = [said[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    return not any(int(value, 16) for value in sets) and said["NoNewPrivs"] == "1"


def _namespaces(sandbox: dict[str, Any]) -> bool:
    """Its own user, pid, network, IPC and mount namespaces."""
    return all(os.readlink("/proc/self/ns/" + name) != sandbox["outside"][name] for name in NAMESPACES if name != "net")


def _network(sandbox: dict[str, Any]) -> bool:
    """A network namespace of its own with nothing but the loopback interface, and no way to an address outside."""
    own = os.readlink("/proc/self/ns/net") != sandbox["outside"]["net"]
    return own and {name for _, name in socket.if_nameindex()} <= {"lo"} and all(_unreachable(*each) for each in _ADDRESSES)


def _unreachable(family: int, address: tuple[str, int]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as attempt:
            attempt.setblocking(False)
            return attempt.connect_ex(address) in _UNREACHABLE
    except OSError as error:
        return error.errno in _UNREACHABLE


def _remount(sandbox: dict[str, Any]) -> bool:
    """Nothing read-only can be made writable, in a user namespace of its own neither."""
    tried = ["/", *sandbox["read_only"]]
    if any(_can_remount(path) for path in tried):
        return False
    return _in_child(lambda: _nested(tried, sandbox["hidden"]))


def _nested(tried: list[str], hidden: str) -> bool:
    try:
        confine.mount_in_own_user_namespace()
    except OSError:
        return True
    return not any(_can_remount(path) for path in tried) and not _can_uncover(hidden)


def _can_uncover(path: str) -> bool:
    try:
        confine.uncover(path)
    except OSError:
        return False
    return True


def _can_remount(path: str) -> bool:
    try:
        confine.remount_writable(path)
    except OSError:
        return False
    return True


def _in_child(test: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if test() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _writes(sandbox: dict[str, Any]) -> bool:
    """No directory outside of the workspace and the scratch places takes a new entry, and no switch of the machine can be opened."""
    if any(_can_open(path, os.O_WRONLY) for path in _SWITCHES if os.path.exists(path)):
        return False
    return not any(_can_write(path) for path in ("/", *sandbox["read_only"]) if os.path.isdir(path))


def _can_write(path: str) -> bool:
    name = os.path.join(path, ".perdure-self-test-%s" % os.urandom(8).hex())
    try:
        os.mkdir(name)
    except OSError:
        return False
    os.rmdir(name)
    return True


def _sockets(sandbox: dict[str, Any]) -> bool:
    """No FIFO and no socket in what is bound, no /run: nothing to talk to somebody outside through."""
    if any(os.path.lexists(path) for path in ("/run", "/var/run")):
        return False
    return not any(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for path in sandbox["binds"] for mode in _modes(path))


def _modes(path: str) -> Iterator[int]:
    yield os.lstat(path).st_mode
    for directory, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(directory, name)).st_mode


def _hidden(sandbox: dict[str, Any]) -> bool:
    """The state folder is not there, and the supervisor can't be looked into."""
    if os.listdir(sandbox["hidden"]):
        return False
    inside = [name for directory in ("fd", "map_files") for name in _names("/proc/1/" + directory)]
    return not any(_can_open("/proc/1/" + name) for name in ("root/", "cwd/", "environ", "mem", *inside))


def _names(directory: str) -> list[str]:
    """Numbers of descriptors may be listed; what they lead to may not be reached."""
    try:
        return [os.path.basename(directory) + "/" + name for name in os.listdir(directory)]
    except OSError:
        return []


def _can_open(path: str, how: int = os.O_RDONLY) -> bool:
    try:
        os.close(os.open(path, how | os.O_NONBLOCK))
    except OSError:
        return False
    return True


TESTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "capabilities": _capabilities,
    "namespaces": _namespaces,
    "network": _network,
    "remount": _remount,
    "writes": _writes,
    "sockets": _sockets,
    "hidden": _hidden,
}
