"""The tools that work on files: read, write, edit, list.

They take paths as a model writes them, never leave the root, never block on a FIFO, and say what to do next when something is wrong. A file
is replaced by a new one under the same name, so that a reader sees the old or the new content; only a file with several names is written
in place, because those names must stay one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import Any, Callable, Optional

from perdure.spaced import exchange
from perdure.spaced.errors import FencedError, OpError
from perdure.spaced.index import stat_key
from perdure.spaced.paths import DIRECTORY_FLAGS, Place, path_text, resolve
from perdure.spaced.steps import step
from perdure.spaced.temporary import temporary_name
from perdure.spaced.texts import Binary, decode, replace
from perdure.spaced.workspace import Workspace

LARGEST_TEXT_BYTES = 64 << 20
EMPTY = "[%s is empty]"
"""What `read` says of a file without lines."""

_READ = {"offset": 1, "limit": 2000, "max_bytes": 50 * 1024}
_LIST = {"path": ".", "depth": 1, "limit": 2000}

Cancelled = Callable[[], bool]


def run(workspace: Workspace, op: dict[str, Any], cancelled: Cancelled) -> dict[str, Any]:
    """Carry out a read, write, edit or list of space.py; the result in the shape of OpResult.

    Raises OpError with a text for the model, FencedError as soon as `cancelled()` is true before a change.
    """
    kind = op["type"]
    if kind == "read":
        return _read(workspace, {**_READ, **op})
    if kind == "list":
        return _list(workspace, {**_LIST, **op})
    workspace.sweep(cancelled)
    if kind == "write":
        return _write(workspace, op, cancelled)
    if kind == "edit":
        return _edit(workspace, op, cancelled)
    raise OpError("unknown operation %r" % kind)


# ---- read and list -----------------------------------------------------------------------------------------------------------


def _read(workspace: Workspace, op: dict[str, Any]) -> dict[str, Any]:
    with resolve(workspace.root_fd, workspace.root_path, op["path"]) as place:
        data = _content(place, op["path"])
    seen = _seen(place, op["path"], data)
    try:
        text = decode(data).seen
    except Binary:
        message = "%s is a binary file of %d bytes; look at it with a command, such as file or xxd" % (op["path"], len(data))
        return {"ok": False, "text": message, "seen": seen}
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return {"ok": True, "text": EMPTY % op["path"], "seen": seen}
    first = op["offset"]
    if first > len(lines):
        raise OpError("%s has %d lines; there is no line %d" % (op["path"], len(lines), first))
    shown, note = _page(lines, first, op["limit"], op["max_bytes"])
    return {"ok": True, "text": shown + note, "seen": seen, "truncated": bool(note)}


def _page(lines: list[str], first: int, limit: int, max_bytes: int) -> tuple[str, str]:
    """The lines from `first` on that fit, and what to say of the rest."""
    shown: list[str] = []
    size = 0
    for line in lines[first - 1 : first - 1 + limit]:
        size += len(line.encode("utf-8", "surrogatepass")) + 1
        if size > max_bytes:
            break
        shown.append(line)
    if not shown:
        cut = lines[first - 1].encode("utf-8", "surrogatepass")[:max_bytes].decode("utf-8", "ignore")
        return cut, "\n[line %d has %d characters and is cut here; see the rest with a command, such as cut -c]" % (
            first,
            len(lines[first - 1]),
        )
    last = first + len(shown) - 1
    text = "\n".join(shown) + "\n"
    if last == len(lines):
        return text, ""
    return text, "[lines %d-%d of %d; read on with offset=%d]" % (first, last, len(lines), last + 1)


def _list(workspace: Workspace, op: dict[str, Any]) -> dict[str, Any]:
    lines: list[str] = []
    with resolve(workspace.root_fd, workspace.root_path, op["path"]) as place:
        if place.status is None:
            raise OpError("there is no %s%s" % (op["path"], _similar(place)))
        if not stat.S_ISDIR(place.status.st_mode):
            raise OpError("%s is not a directory; use read" % op["path"])
        fd = os.open(place.name or ".", DIRECTORY_FLAGS, dir_fd=place.fd)
    truncated = _list_directory(fd, "", op["depth"], op["limit"], lines)
    if truncated:
        lines.append("[only the first %d entries; list a directory below, or use find]" % op["limit"])
    return {"ok": True, "text": "\n".join(lines) + "\n" if lines else "[empty directory]", "truncated": truncated}


def _list_directory(fd: int, prefix: str, depth: int, limit: int, lines: list[str]) -> bool:
    """Append lines for the directory `fd`, which is closed; True where the limit cut them off. As deep as `depth`, which is small."""
    try:
        for name in sorted(os.listdir(fd)):
            if len(lines) >= limit:
                return True
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            shown = path_text(prefix + name)
            if stat.S_ISDIR(status.st_mode):
                lines.append(shown + "/")
                if depth > 1 and name != ".git" and prefix.count("/") < 100:
                    with contextlib.suppress(PermissionError):
                        below = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
                        if _list_directory(below, prefix + name + "/", depth - 1, limit, lines):
                            return True
            elif stat.S_ISLNK(status.st_mode):
                lines.append("%s -> %s" % (shown, path_text(os.readlink(name, dir_fd=fd))))
            elif stat.S_ISREG(status.st_mode):
                lines.append("%s  %d bytes" % (shown, status.st_size))
            else:
                lines.append("%s  (not a file)" % shown)
        return False
    finally:
        os.close(fd)


# ---- write and edit ----------------------------------------------------------------------------------------------------------


def _write(workspace: Workspace, op: dict[str, Any], cancelled: Cancelled) -> dict[str, Any]:
    data = op["content"].encode("utf-8", "surrogateescape")
    with resolve(workspace.root_fd, workspace.root_path, op["path"]) as place:
        if place.status is not None:
            _check_regular(place, op["path"])
        if op.get("expect"):
            _check_expected(place, op)
        _put(place, data, cancelled)
    done = "wrote" if place.status is not None else "created"
    return {"ok": True, "text": "%s %s (%d bytes)" % (done, op["path"], len(data)), "seen": _seen(place, op["path"], data)}


def _edit(workspace: Workspace, op: dict[str, Any], cancelled: Cancelled) -> dict[str, Any]:
    with resolve(workspace.root_fd, workspace.root_path, op["path"]) as place:
        data = _content(place, op["path"])
        if op.get("expect") and hashlib.sha256(data).hexdigest() != op["expect"]:
            raise OpError(_stale(op["path"]))
        try:
            decoded = decode(data)
        except Binary:
            raise OpError("%s is a binary file; edit it with a command" % op["path"]) from None
        text, lines = replace(decoded, op["edits"], op["path"])
        try:
            data = decoded.encode(text)
        except UnicodeEncodeError as error:
            raise OpError(
                "%s is encoded in %s, which has no %r; convert the file first or use other characters. Nothing was changed."
                % (op["path"], decoded.encoding, text[error.start])
            ) from None
        _put(place, data, cancelled)
    told = "edited %s: %d replacement%s, line%s %s" % (
        op["path"],
        len(lines),
        "s"[: len(lines) > 1],
        "s"[: len(lines) > 1],
        ", ".join(map(str, lines)),
    )
    return {"ok": True, "text": told, "seen": _seen(place, op["path"], data)}


def _put(place: Place, data: bytes, cancelled: Cancelled) -> None:
    """Make the place hold exactly `data`."""
    fd = os.dup(place.fd)
    try:
        for name in place.missing:
            _check(cancelled)
            os.mkdir(name, dir_fd=fd)
            step("directory made")
            below = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = below
        if place.status is not None and place.status.st_nlink > 1:
            _overwrite(fd, place.name, data, cancelled)
        else:
            _exchange(fd, place.name, data, place.status, cancelled)
    finally:
        os.close(fd)


def _exchange(fd: int, name: str, data: bytes, status: Optional[os.stat_result], cancelled: Cancelled) -> None:
    _check(cancelled)
    temporary = temporary_name()
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=fd)
    try:
        try:
            write_all(file, data)
            if status is not None:
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    with contextlib.suppress(PermissionError):
                        os.fchown(file, status.st_uid, status.st_gid)
                os.fchmod(file, stat.S_IMODE(status.st_mode))
        finally:
            os.close(file)
        step("file written")
        _check(cancelled)
        if not exchange.put(fd, temporary, name, None if status is None else stat_key(status)):
            raise OpError("somebody else saved %s at this very moment; read it again. Nothing was changed." % name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=fd)
        raise
    step("file renamed")


def _overwrite(fd: int, name: str, data: bytes, cancelled: Cancelled) -> None:
    _check(cancelled)
    file = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
    try:
        write_all(file, data)
        step("file overwritten")
        os.ftruncate(file, len(data))
    finally:
        os.close(file)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# ---- what the model is told when it does not work ------------------------------------------------------------------------------


def _content(place: Place, asked: str) -> bytes:
    """All bytes of a regular file. Raises OpError."""
    if place.status is None:
        raise OpError("there is no file %s%s" % (asked, _similar(place)))
    _check_regular(place, asked)
    if place.status.st_size > LARGEST_TEXT_BYTES:
        raise OpError(
            "%s has %d bytes, too many for this tool; use a command, such as head, sed -n or grep" % (asked, place.status.st_size)
        )
    try:
        fd = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place.fd)
    except PermissionError:
        raise OpError("%s can't be read: permission denied" % asked) from None
    with open(fd, "rb") as file:
        return file.read()


def _check_regular(place: Place, asked: str) -> None:
    assert place.status is not None
    if stat.S_ISDIR(place.status.st_mode):
        raise OpError("%s is a directory; use list" % asked)
    if not stat.S_ISREG(place.status.st_mode):
        raise OpError("%s is no regular file but a FIFO, socket or device" % asked)


def _check_expected(place: Place, op: dict[str, Any]) -> None:
    if place.status is None or hashlib.sha256(_content(place, op["path"])).hexdigest() != op["expect"]:
        raise OpError(_stale(op["path"]))


def _stale(path: str) -> str:
    return "%s changed since it was last read; read it again. Nothing was changed." % path


def _similar(place: Place) -> str:
    """Names in the same directory that may have been meant."""
    if place.missing:
        return ": there is no directory %s" % place.path.rpartition("/")[0]
    import difflib

    close = difflib.get_close_matches(place.name, map(path_text, os.listdir(place.fd)), 3)
    return "; did you mean %s?" % " or ".join(close) if close else ""


def _seen(place: Place, asked: str, data: bytes) -> dict[str, str]:
    """Under the name that the model uses, and under the one that captures report."""
    return dict.fromkeys((asked, path_text(place.path)), hashlib.sha256(data).hexdigest())


def _check(cancelled: Cancelled) -> None:
    if cancelled():
        raise FencedError
