"""The sandbox: what a command in it can see, made by bubblewrap around the supervisor.

A small root, read-only: the system's programs and libraries, the directories that a person named (`binds`), this Python, and of `/etc` what everybody may read.
Writable are the workspace at its own path and what is private to one life of the supervisor: `/tmp`, `/dev/shm`, the home directory.
There is no `/run`, no `/var`, nobody's home. The supervisor has two more mounts below `/perdure`: itself, and the state folder, which no command
sees (`perdure.spaced.confine`). Their place is fixed and read-only: a mount point that a command can rename would be gone from the
supervisor's view too.

User, pid, network, IPC and UTS namespaces are its own. Only this user exists in there, so files of others are nobody's.
"""

from __future__ import annotations

import functools
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from perdure import spaced
from perdure.record.errors import UsageError
from perdure.record.parts import printable
from perdure.spaced.selftest import NAMESPACES

STATE = "/perdure/state"
SUPERVISOR = "/perdure/spaced"
EMPTY = "/perdure/empty"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_OTHER_HOME = "/home/user"
_OWN = ("/proc", "/dev", "/tmp", "/etc", "/perdure", *SYSTEM)
_ELSEWHERE = ("TMPDIR", "TMP", "TEMP", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "BASH_ENV", "ENV")
"""What names a place that is not in there."""

SCRATCH_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
"""What each scratch place holds at most; it lies in memory."""

_PROBE_S = 10.0
_FORBIDDEN = ("create new namespace", "uid map", "RTM_NEWADDR")
"""In what bubblewrap says where the kernel, or AppArmor, lets this user make no namespaces."""

_ALLOW = (
    "let this user make user namespaces (as root `sysctl kernel.unprivileged_userns_clone=1`, or on Ubuntu "
    "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`)"
)
_MEANS = {
    "capabilities": "commands have rights that they should not have",
    "namespaces": "commands share a namespace with the machine",
    "network": "commands can reach the network",
    "remount": "what is read-only can be made writable",
    "writes": "commands can write outside of the workspace",
    "sockets": "there is a socket or a FIFO in what is bound, by which commands can reach other processes",
    "hidden": "commands can look at the supervisor's own files",
}


class Sandbox(Struct, frozen=True):
    """What a session asked for. `binds` are absolute paths of this machine that its commands can read."""

    network: bool = False
    binds: tuple[str, ...] = ()


# ---- what can be asked for -----------------------------------------------------------------------------------------------------


def check_binds(binds: Iterable[str | os.PathLike[str]], root: Path, home: Path) -> tuple[str, ...]:
    """Absolute paths. UsageError, with the remedy, for what can't be shown to a command read-only."""
    return tuple(dict.fromkeys(_check_bind(os.fspath(bind), root, Path(os.path.realpath(home))) for bind in binds))


def _check_bind(given: str, root: Path, home: Path) -> str:
    path = Path(os.path.normpath(Path(given).expanduser().absolute()))
    real = Path(os.path.realpath(path))
    if not printable(str(path)) == str(path):
        raise UsageError(f"{printable(str(path))} can't be shown to the sandbox, since its name is not UTF-8; rename it")
    if not path.exists():
        raise UsageError(f"{path} can't be shown to the sandbox, since it does not exist; put it back, or leave --bind out")
    if real == Path(real.anchor):
        raise UsageError("/ can't be shown to the sandbox; name the directories of the tools that its commands need")
    if real.is_relative_to(root):
        raise UsageError(f"{path} lies in the workspace {root}, where commands have it already; leave that --bind out")
    if home.is_relative_to(real) or real.is_relative_to(home):
        raise UsageError(
            f"{path} can't be shown to the sandbox: Perdure's home {home}, which no command may see, lies there; name a directory "
            "further down, or set PERDURE_HOME to another place"
        )
    if any(path.is_relative_to(own) for own in ("/proc", "/sys", "/dev", "/run", "/perdure")):
        raise UsageError(f"{path} can't be shown to the sandbox: it is the machine's, not a tool's; leave that --bind out")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} can't be shown to the sandbox: this user can't read it; change its permissions")
    return str(path)


@functools.cache
def problem(wrap: str | None) -> str | None:
    """Why this machine can't give a sandbox by this bubblewrap; None where it can. Tried once a process."""
    if sys.platform != "linux":
        return "sandboxes exist on Linux only"
    if wrap is None:
        return "bubblewrap (`bwrap`) is not installed"
    if (python := _python_problem()) is not None:
        return python
    command = [wrap, *_namespaces(False), *_root(_mounts(())), "--", "/bin/sh", "-c", "test $$ = 1"]
    try:
        tried = subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = tried.stderr.decode(errors="replace").strip() or "the command in it failed"
    if "nknown option" in said:
        return f"{wrap} is too old ({said}); bubblewrap 0.7 or later is needed"
    if tried.returncode != 0 and any(word in said for word in _FORBIDDEN):
        return f"{said}; {_ALLOW}"
    return None if tried.returncode == 0 else said


def check(wrap: str | None, sandbox: Sandbox, root: Path, home: Path) -> None:
    """UsageError, saying what to do, where it can't be had here as it was asked for."""
    why = problem(wrap)
    if why is not None:
        raise UsageError(
            f"no sandbox here: {why}; mend that, or start a session with --space host, whose commands can do what you can"
        )
    check_binds(sandbox.binds, root, home)


def failures(self_test: Mapping[str, bool]) -> list[str]:
    """What each failed test means, in words."""
    return [f"{name}: {_MEANS.get(name, 'it did not hold')}" for name, passed in self_test.items() if not passed]


def tried(wrap: str) -> dict[str, bool]:
    """What the tests of a sandbox say here, in one that is thrown away. UsageError where it does not come up."""
    with tempfile.TemporaryDirectory() as place:
        folder, root = Path(place, "spaces", "tried"), Path(os.path.realpath(place), "root")
        for path in (folder, root):
            path.mkdir(parents=True)
        line = command(wrap, Sandbox(), folder, root, ["--try"])
        done = subprocess.run(line, capture_output=True, timeout=_PROBE_S, check=False, env=environment(os.environ, root))
    if done.returncode != 0:
        raise UsageError(f"no sandbox here: {done.stderr.decode(errors='replace').strip()}")
    return msgspec.json.decode(done.stdout, type=dict[str, bool])


# ---- how it is made --------------------------------------------------------------------------------------------------------------


def command(
    wrap: str,
    sandbox: Sandbox,
    folder: Path,
    root: Path,
    arguments: Sequence[str],
    *,
    python: str = sys.executable,
    package: Path = Path(spaced.__file__).parent,
) -> list[str]:
    """The command line of a supervisor in its sandbox. `folder` is the Space's state folder, in the home's `spaces`."""
    home = Path(os.path.realpath(folder.parent.parent))
    binds = check_binds(sandbox.binds, root, home)
    mounts = _mounts(binds, python)
    read_only = [SUPERVISOR, *(path for path in (*SYSTEM, "/etc", *mounts) if _is_directory(path))]
    if any(home.is_relative_to(os.path.realpath(path)) for path in read_only):
        mounts[str(home)] = _scratch(str(home))
    private = _home(root)
    if not Path(private).is_relative_to(root):
        mounts.setdefault(private, _scratch(private))
    mounts[str(root)] = ["--bind", str(root), str(root)]
    mounts[SUPERVISOR] = ["--ro-bind", str(package), SUPERVISOR]
    mounts[STATE] = ["--bind", str(folder), STATE]
    mounts[EMPTY] = ["--dir", EMPTY]
    asked = {"hidden": STATE, "empty": EMPTY, "outside": _outside(), "read_only": read_only, "binds": binds}
    supervisor = [os.path.realpath(python), "-I", "-S", SUPERVISOR, STATE, str(root), *arguments]
    return [
        *(wrap, *_namespaces(sandbox.network), "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"),
        *(*_root(mounts, network=sandbox.network), "--", *supervisor, "--sandbox", msgspec.json.encode(asked).decode()),
    ]


def environment(given: Mapping[str, str], root: Path) -> dict[str, str]:
    """What commands see of the driver's: nothing that names a place which is not in there."""
    kept = {name: value for name, value in given.items() if name not in _ELSEWHERE}
    return {**kept, "HOME": _home(root)}


def _namespaces(network: bool) -> list[str]:
    shared = [] if network else ["--unshare-net"]
    return ["--unshare-user", "--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts", *shared, "--cap-drop", "ALL"]


def _root(mounts: Mapping[str, list[str]], *, network: bool = False) -> list[str]:
    """A parent is mounted before what lies in it; the root itself is read-only once all is in place."""
    ordered = sorted(mounts, key=lambda path: path.count("/"))
    own = ["--proc", "/proc", "--dev", "/dev", *_scratch("/dev/shm"), *_scratch("/tmp")]
    names = _resolver() if network else []
    return [
        *_system(),
        *_etc(),
        *own,
        *names,
        *(word for path in ordered for word in mounts[path]),
        "--remount-ro",
        "/",
        "--chdir",
        "/",
    ]


def _scratch(path: str) -> list[str]:
    """A private place in memory, bounded: the kernel's own bound is half of the memory for each."""
    return ["--size", str(SCRATCH_BYTES), "--tmpfs", path]


def _system() -> list[str]:
    """As they are here: directories, or the symlinks of a merged /usr."""
    words: list[str] = []
    for path in SYSTEM:
        if Path(path).is_symlink():
            words += ["--symlink", str(Path(path).readlink()), path]
        elif _is_directory(path):
            words += ["--ro-bind", path, path]
    return words


def _etc() -> list[str]:
    """What everybody may read; the rest (passwords, keys) is empty, whoever this user is."""
    words = ["--ro-bind", "/etc", "/etc"] if _is_directory("/etc") else []
    for path, mode in _entries("/etc"):
        if stat.S_ISDIR(mode) and mode & 0o005 != 0o005:
            words += ["--tmpfs", path, "--remount-ro", path]
        elif not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode) and (not mode & 0o004 or not stat.S_ISREG(mode)):
            words += ["--ro-bind", "/dev/null", path]
    return words


def _entries(folder: str) -> Iterator[tuple[str, int]]:
    """Everything below that everybody may reach, and what keeps others out, without what is in there."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        mode = entry.stat(follow_symlinks=False).st_mode
        yield entry.path, mode
        if stat.S_ISDIR(mode) and mode & 0o005 == 0o005:
            yield from _entries(entry.path)


def _resolver() -> list[str]:
    """Where names are looked up often lies in /run."""
    real = os.path.realpath("/etc/resolv.conf")
    return [] if real.startswith("/etc/") or not Path(real).is_file() else ["--ro-bind", real, real]


def _mounts(binds: Iterable[str], python: str = sys.executable) -> dict[str, list[str]]:
    """What else is read-only, by path: what was asked for, and this Python unless it is the system's."""
    paths = [*binds, *(path for path in _python(python) if not _covered(path))]
    return {path: ["--ro-bind", path, path] for path in paths}


def _python(python: str) -> list[str]:
    return sorted(
        {
            str(Path(os.path.realpath(python)).parent.parent),
            *([os.path.realpath(sys.base_prefix)] if python == sys.executable else []),
        }
    )


def _python_problem() -> str | None:
    for path in _python(sys.executable):
        if not _covered(path) and Path(_user_home()).is_relative_to(path):
            return f"Python lies in {path}, and so does all of your home directory; install one in a directory of its own"
    return None


def _covered(path: str) -> bool:
    return any(Path(path).is_relative_to(os.path.realpath(each)) for each in SYSTEM)


def _is_directory(path: str) -> bool:
    return Path(path).is_dir() and not Path(path).is_symlink()


def _home(root: Path) -> str:
    """This user's, which is empty there; another one's where that can't be."""
    home = _user_home()
    inside = any(Path(home).is_relative_to(own) or Path(own).is_relative_to(home) for own in _OWN)
    return _OTHER_HOME if inside and not Path(home).is_relative_to(root) else home


def _user_home() -> str:
    try:
        return os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return "/"


def _outside() -> dict[str, str]:
    return {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in NAMESPACES}
