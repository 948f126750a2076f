"""One `perdure.toml`: where it lies, and what it says, or everything that is wrong with it, a line each."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError

from perdure.config.keys import KEYS, TABLES, checked, written
from perdure.config.lines import Place, lines
from perdure.program.permissions import VERDICTS, Rule, parse
from perdure.record.errors import UsageError

NAME = "perdure.toml"
MAX_BYTES = 1 << 20
SHOWN_CHARS = 60
PERMISSIONS = tuple(f"permissions.{verdict}" for verdict in VERDICTS)


class File(Struct, frozen=True):
    """`values` by key, `lines` by place; `digest` is of the bytes that were read."""

    path: Path
    values: dict[str, Any]
    lines: dict[Place, int]
    digest: str

    def where(self, key: str) -> str:
        return f"{self.path}:{self.lines[tuple(key.split('.'))]}"

    def rules(self, key: str) -> tuple[Rule, ...]:
        """The calls that `permissions.allow`, `ask` or `deny` names, each with its line."""
        table, name = key.split(".")
        found: list[Rule] = []
        for index, entry in enumerate(self.values[key]):
            found += parse({name: [entry]}, f"{self.path}:{self.lines[table, name, index]}").rules
        return tuple(found)


def user_path(environ: Mapping[str, str]) -> Path:
    """The user's file: `$PERDURE_CONFIG`, else in the platform's folder for such files."""
    if given := environ.get("PERDURE_CONFIG"):
        return Path(given).expanduser().absolute()
    return user_folder(environ) / NAME


def user_folder(environ: Mapping[str, str]) -> Path:
    """The platform's folder for what a user has configured."""
    if sys.platform == "darwin" and not environ.get("XDG_CONFIG_HOME"):
        return Path("~/Library/Application Support/perdure").expanduser()
    return Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "perdure"


def project_path(directory: Path) -> Path | None:
    """The nearest one at or above the directory, not above the root of its repository; outside of one, the directory's own."""
    directory = Path(os.path.realpath(directory))
    folders = (directory, *directory.parents)
    root = next((folder for folder in folders if (folder / ".git").exists()), directory)
    for folder in folders:
        if os.path.lexists(folder / NAME):
            return folder / NAME
        if folder == root:
            return None
    return None


def read(path: Path) -> File | None:
    """None if there is none. UsageError says where each fault is, and what would be right."""
    try:
        data = _bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    text, table = _parsed(path, data)
    try:
        places = lines(text)
    except RecursionError:
        raise UsageError(f"{path}:1: values lie too deep in each other") from None
    reading = _Reading(path, places)
    values = reading.values(table)
    if reading.faults:
        raise UsageError("\n  ".join(fault for _, fault in sorted(reading.faults)))
    return File(path, values, places, hashlib.sha256(data).hexdigest())


def _bytes(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{path} is not a file; move it away, or put a file in its place")
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES} bytes; that is no configuration")
    return data


def _parsed(path: Path, data: bytes) -> tuple[str, dict[str, Any]]:
    text = ""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: these bytes are not UTF-8 text; save the file as UTF-8") from error
    except RecursionError:
        raise UsageError(f"{path}:1: values lie too deep in each other") from None
    except ValueError as error:
        said = str(error)
        found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", said)
        line = int(found[1]) if found and found[1] else max(1, len(text.splitlines()))
        column = f" (column {found[2]})" if found and found[2] else ""
        raise UsageError(f"{path}:{line}: this is not TOML: {said[: found.start()] if found else said}{column}") from error


class _Reading:
    """Checks a table against the keys, gathering faults with their lines."""

    def __init__(self, path: Path, places: Mapping[Place, int]) -> None:
        self.faults: list[tuple[int, str]] = []
        self._path = path
        self._places = places

    def values(self, table: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in table.items():
            if name not in TABLES:
                self._value((name,), value, values)
            elif not isinstance(value, dict):
                self._fault((name,), f"`{name}` is {_shown(value)}; it must be a table: [{name}]")
            else:
                for inner, each in value.items():
                    self._value((name, inner), each, values)
        if "base_url" in values:
            self._server(values.get("model", ()))
        return values

    def _server(self, model: str | tuple[str, ...]) -> None:
        names = (model,) if isinstance(model, str) else model
        if not names:
            self._fault(("base_url",), "`base_url` stands alone; name the `model` that it is for in the same file")
        elif len({name.partition(":")[0] for name in names}) > 1:
            self._fault(
                ("base_url",),
                "`base_url` is one provider's server; the models beside it are of several, and would all be asked there",
            )

    def _value(self, place: tuple[str, ...], value: Any, values: dict[str, Any]) -> None:
        name = ".".join(place)
        key = KEYS.get(name) if tuple(name.split(".")) == place else None  # a quoted key may hold a dot
        if key is None:
            self._fault(place, self._unknown(place))
            return
        try:
            values[name] = checked(key, value)
            if name in PERMISSIONS:
                self._rules(place, values[name])
        except ValidationError as error:
            said, _, inside = str(error).partition(" - at `$")
            at = (*place, *_steps(inside))
            if "unknown field" in said or "missing" in said or "either" in said:
                self._fault(at, f"`{name}`: {said}; it is {key.allowed}")
            else:
                self._fault(at, f"`{name}` is {_shown(_at(value, at[len(place) :]))} here; it must be {key.allowed}")

    def _rules(self, place: tuple[str, ...], entries: tuple[str, ...]) -> None:
        for index, entry in enumerate(entries):
            try:
                parse({place[1]: [entry]}, str(self._path))
            except UsageError as error:
                self._fault((*place, index), str(error).removeprefix(f"{self._path}: "))

    def _unknown(self, place: tuple[str, ...]) -> str:
        prefix = f"{place[0]}." if len(place) == 2 else ""
        known = [name for name in (*KEYS, *TABLES) if name.startswith(prefix) and (prefix or "." not in name)]
        near = difflib.get_close_matches(".".join(place), (*KEYS, *TABLES), 1, 0.7)
        meant = f" (`{near[0]}`?)" if near else ""
        return f"there is no key `{'.'.join(place)}`{meant}; there are {', '.join(name.removeprefix(prefix) for name in known)}"

    def _fault(self, place: Place, text: str) -> None:
        while place not in self._places and place:
            place = place[:-1]
        line = self._places.get(place, 1)
        self.faults.append((line, f"{self._path}:{line}: {text}"))


def _steps(inside: str) -> Place:
    """The path of msgspec's messages, `[0].tools`` , as steps."""
    found = re.findall(r"\.(\w+)|\[(\d+)\]", inside)
    return tuple(name or int(index) for name, index in found)


def _at(value: Any, steps: Place) -> Any:
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            break
    return value


def _shown(value: Any) -> str:
    text = written(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
