"""What the workspace's AGENTS.md files say to the model: the root's joins the stable prefix when the session begins, with the skills that there are.

One further down is told in the transcript, once a thread, before the first request after the model has read or changed a file below its folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perdure.drive.journal import Journal
from perdure.drive.site import Site
from perdure.program import skills
from perdure.record import records as r
from perdure.record.records import Draft
from perdure.space.space import List
from perdure.spaced.files import EMPTY

NAME = "AGENTS.md"


class Instructing:
    """One driver's. The Space is open whenever it is asked."""

    def __init__(self, journal: Journal, site: Site, folders: tuple[Path, ...]) -> None:
        """`folders` are where the user's skills lie."""
        self._folders = folders
        self._journal = journal
        self._site = site
        self._looked: dict[str, set[str]] = {}
        self._found: dict[str, str] = {}

    async def root(self) -> None:
        if self._journal.view.session.instructions is None:
            found = skills.distinct([*skills.users(self._folders), *await self._skills()])
            body = r.SettingsChanged(instructions=await self._read(NAME), skills=found or None)
            self._journal.fact(Draft(body))

    async def _skills(self) -> list[r.Skill]:
        """The workspace's."""
        key = f"{self._journal.view.session.log_id}:{skills.FOLDER}:{self._journal.grant.epoch}"
        listed = await self._site.ask(List(skills.FOLDER), key)
        names = [line[:-1] for line in listed.text.splitlines() if line.endswith("/")] if listed else []
        paths = {name: f"{skills.FOLDER}/{name}/{skills.FILE}" for name in names[: skills.MAX_SKILLS] if skills.named(name)}
        found = [skills.skill(name, path, await self._read(path)) for name, path in paths.items()]
        return [each for each in found if each is not None]

    async def nested(self, thread_name: str) -> None:
        """Facts for what the thread's model has not been told yet, from the root down."""
        thread = self._journal.view.threads[thread_name]
        looked = self._looked.setdefault(thread_name, set())
        fresh = thread.seen.keys() - looked
        if not fresh:
            return
        looked |= fresh
        for path in above(fresh):
            if path not in thread.instructed and path not in thread.seen and (text := await self._read(path)):
                self._journal.fact(Draft(r.Instructed(path, text), thread_name))

    async def _read(self, path: str) -> str:
        """The file's text, as it is when this driver comes to it first; empty if there is none."""
        if path not in self._found:
            key = f"{self._journal.view.session.log_id}:{path}:{self._journal.grant.epoch}"
            found = await self._site.read(path, key)
            self._found[path] = found.text if found and found.text != EMPTY % path else ""
        return self._found[path]


def above(paths: Iterable[str]) -> list[str]:
    """The AGENTS.md of every folder between the root and these paths of files, each folder's before those below it."""
    folders = set[str]()
    for path in paths:
        parts = path.split("/")[:-1]
        if any(part in ("", ".", "..") for part in parts):
            continue  # another spelling of a path that is there too, or one outside
        folders.update("/".join(parts[: n + 1]) for n in range(len(parts)))
    return [f"{folder}/{NAME}" for folder in sorted(folders, key=lambda folder: (folder.count("/"), folder))]
