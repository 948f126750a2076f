"""What holds for a directory, and who said so: the project's file over the user's over the defaults, the environment over all of them.

A project's file comes with a repository, so a stranger may have written it. Where the user has not said that it is trusted, it can make things
tighter and nothing else; what it would loosen is left aside, and told.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure.config import trust
from perdure.config.file import PERMISSIONS, File, project_path, read, user_folder, user_path
from perdure.config.keys import KEYS, Key
from perdure.model.catalog import url_variable
from perdure.program.hooks import POINTS, Hooks
from perdure.program.permissions import Rules
from perdure.record.errors import UsageError
from perdure.record.records import Budget

MODEL = "PERDURE_MODEL"
DEFAULT = "default"


class Held(Struct, frozen=True):
    """A value, and where each part of it comes from: FILE:LINE, `$VARIABLE` or `default`."""

    value: Any
    where: tuple[str, ...] = (DEFAULT,)


class Settings(Struct, frozen=True):
    """`held` by key; `ignored` are the keys of an untrusted project's file that would loosen something, with their lines."""

    held: dict[str, Held]
    own_skills: Path = Path()
    project: Path | None = None
    ignored: tuple[tuple[str, int], ...] = ()

    @property
    def model(self) -> str | tuple[str, ...] | None:
        found: str | tuple[str, ...] | None = self.held["model"].value
        return found

    @property
    def base_url(self) -> str | None:
        found: str | None = self.held["base_url"].value
        return found

    @property
    def budget(self) -> Budget:
        names = ("turns", "tokens", "seconds", "failures")
        return Budget(*(self.held[f"budget.{name}"].value for name in names))

    @property
    def permissions(self) -> Rules:
        rules = (rule for key in PERMISSIONS for rule in self.held[key].value)
        return Rules(tuple(rules), self.held["permissions.default"].value)

    @property
    def warning(self) -> str:
        """What was left aside, and what to do about it; empty where nothing was."""
        if not self.ignored or self.project is None:
            return ""
        names = ", ".join(f"`{name}` (line {line})" for name, line in self.ignored)
        command = f"perdure config trust {shlex.quote(str(self.project.parent))}"
        return f"{self.project} is not trusted, so it can't set {names}; look at it, then `{command}`"

    @property
    def skill_folders(self) -> tuple[Path, ...]:
        """Those that are configured, then the user's own."""
        return (*map(Path, self.held["skills.folders"].value), self.own_skills)

    @property
    def hooks(self) -> Hooks:
        return Hooks(*(self.held[f"hooks.{point}"].value for point in POINTS))


def settings(directory: str | os.PathLike[str], home: Path, environ: Mapping[str, str]) -> Settings:
    """What holds for sessions on the directory. UsageError, with lines, where a file is wrong."""
    user = read(user_path(environ))
    held = {name: Held(key.default) for name, key in KEYS.items()}
    if user is not None:
        _laid(held, user, user.values)
    path = project_path(Path(directory).expanduser())
    project = read(path) if path is not None and not _same(path, user) else None
    ignored: tuple[tuple[str, int], ...] = ()
    if project is not None:
        _only_the_users(project)
        values = project.values if trust.trusted(home, project) else _tightening(project, held)
        lines = {name: project.lines[tuple(name.split("."))] for name in project.values if name not in values}
        ignored = tuple(sorted(lines.items(), key=lambda pair: pair[1]))
        _laid(held, project, values)
    _environment(held, environ)
    return Settings(held, user_folder(environ) / "skills", project.path if project else None, ignored)


def _environment(held: dict[str, Held], environ: Mapping[str, str]) -> None:
    """Lay the environment over what the files say."""
    if named := environ.get(MODEL):
        held["model"], held["base_url"] = Held(named, (f"${MODEL}",)), Held(None)
    model = held["model"].value
    variable = url_variable(model if isinstance(model, str) else model[0]) if model else None
    if variable and environ.get(variable):
        held["base_url"] = Held(environ[variable], (f"${variable}",))


def _same(path: Path, user: File | None) -> bool:
    return user is not None and os.path.realpath(path) == os.path.realpath(user.path)


def _only_the_users(project: File) -> None:
    if names := [name for name in project.values if KEYS[name].user_only]:
        raise UsageError(
            "\n  ".join(f"{project.where(name)}: `{name}` is for your own perdure.toml; a project can't set it" for name in names)
        )


def _tightening(file: File, held: Mapping[str, Held]) -> dict[str, Any]:
    """Of what a stranger's file says, what leaves less room than there is."""
    values: dict[str, Any] = {}
    for name, value in file.values.items():
        tightens = KEYS[name].tightens
        if tightens is not None and tightens(value, held[name].value):
            values[name] = value
    return values


def _laid(held: dict[str, Held], file: File, values: Mapping[str, Any]) -> None:
    """Lay a file's values over what holds."""
    if "model" in values:
        held["base_url"] = Held(None)  # that of another file is for another model
    for name, value in values.items():
        key, where = KEYS[name], file.where(name)
        value = _placed(key, value, file)
        if key.joins:
            before = held[name]
            held[name] = Held((*before.value, *value), (*(w for w in before.where if w != DEFAULT), where))
        else:
            held[name] = Held(value, (where,))


def _placed(key: Key, value: Any, file: File) -> Any:
    """Paths of a file are its folder's."""
    folder = Path(os.path.realpath(file.path)).parent
    match key.name:
        case name if name in PERMISSIONS:
            return file.rules(name)
        case "bind" | "skills.folders":
            return tuple(str(folder / Path(path).expanduser()) for path in value)
        case "model":
            return _script(value, folder) if isinstance(value, str) else tuple(_script(name, folder) for name in value)
        case _:
            return value


def _script(name: str, folder: Path) -> str:
    kind, _, path = name.partition(":")
    return f"{kind}:{folder / Path(path).expanduser()}" if kind == "scripted" else name
