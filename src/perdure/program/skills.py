"""Skills: folders with a `SKILL.md` that says, between two lines of `---`, what it is called and when it is of use. The model reads the rest when it needs it.

Those of the workspace lie in `.perdure/skills/NAME/`. A user's lie elsewhere, where the model can't look; `read` of `skill:NAME/FILE` leads there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perdure.record.records import Skill

FOLDER = ".perdure/skills"
FILE = "SKILL.md"
SCHEME = "skill:"
MAX_SKILLS = 200
MAX_BYTES = 256 * 1024
DESCRIPTION_CHARS = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def named(name: str) -> bool:
    """Whether a folder of that name can be a skill."""
    return _NAME.fullmatch(name) is not None


def skill(name: str, path: str, text: str) -> Skill | None:
    """The skill of the folder `name`; None where its file does not say what it is for."""
    description = _fields(text).get("description", "")
    return Skill(name, " ".join(description.split())[:DESCRIPTION_CHARS], path) if description.strip() else None


def users(folders: Iterable[Path]) -> Iterator[Skill]:
    """Those that lie in these folders, the first of a name before others of it."""
    for folder in folders:
        try:
            names = sorted(entry.name for entry in folder.iterdir() if named(entry.name))
        except OSError:
            continue
        for name in names:
            try:
                text = read(folder / name / FILE).decode("utf-8", "replace")
            except OSError:
                continue
            if found := skill(name, f"{SCHEME}{name}/{FILE}", text):
                yield found


def read(path: Path) -> bytes:
    """A file of a skill. OSError where there is none, or it is no ordinary file."""
    if not path.is_file():
        raise FileNotFoundError(str(path))
    with path.open("rb") as file:
        return file.read(MAX_BYTES)


def find(folders: Iterable[Path], rest: str) -> bytes:
    """What `skill:REST` leads to. LookupError, in words for the model, where that is nothing."""
    name, _, path = rest.partition("/")
    for folder in folders if named(name) else ():
        root = (folder / name).resolve()
        target = (root / (path or FILE)).resolve()
        if target.is_relative_to(root) and (root / FILE).is_file():
            try:
                return read(target)
            except OSError:
                raise LookupError(f"The skill '{name}' has no file '{path}'.") from None
    raise LookupError(f"There is no skill '{name}'.")


def distinct(skills: Iterable[Skill]) -> tuple[Skill, ...]:
    """The first of each name."""
    found: dict[str, Skill] = {}
    for each in skills:
        found.setdefault(each.name, each)
    return tuple(found.values())[:MAX_SKILLS]


def listed(skills: Iterable[Skill]) -> str:
    """For the stable prefix; empty where there are none."""
    lines = [f"- {each.name}: {each.description} (`{each.path}`)" for each in skills]
    return "\n".join(("Skills. Where one fits what you are about to do, `read` its file first:", *lines)) if lines else ""


def _fields(text: str) -> dict[str, str]:
    """The head's fields: `name: value`, or `name: >` with indented lines below."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---":
        return {}
    fields: dict[str, str] = {}
    key = ""
    for line in lines[1:]:
        if line.strip() == "---":
            return fields
        if found := re.match(r"([A-Za-z][\w-]*):(?:\s+(.*))?$", line):
            key, value = found[1], (found[2] or "").strip()
            fields[key] = "" if value in (">", "|", ">-", "|-") else _unquoted(value)
        elif key and line[:1] in (" ", "\t"):
            fields[key] = f"{fields[key]} {line.strip()}".strip()
    return {}  # a head without an end


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
