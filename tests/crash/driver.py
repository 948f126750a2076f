"""The driver process that campaigns kill: `python -m tests.crash.driver HOME ROOT SCRIPT`.

It drives a session, made by the first that comes, until it settles or waits; its last line says which, the lines before are the text that it showed,
as JSON. `PERDURE_STEPS` counts this process's steps, `SPACED_STEPS` those of a supervisor that it starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from perdure import api
from perdure.drive.events import Event, TextShown
from perdure.program import permissions
from perdure.record.errors import PerdureError
from perdure.space import launch
from perdure.spaced import steps
from tests.crash import boot, story, tools

SESSION = "s"
TOOLS = (api.from_function(tools.charge), api.from_function(tools.publish, effect="idempotent"))


def show(event: Event) -> None:
    if isinstance(event, TextShown):
        print(json.dumps(event.text), flush=True)


async def main(asked: argparse.Namespace) -> str:
    async with api.open(asked.home) as home:
        if asked.rules:
            rules = permissions.parse(json.loads(asked.rules))
            home.home.rules = lambda directory: rules
        if not any(row.session == asked.session for row in await home.sessions()):
            await home.session(
                asked.session,
                directory=asked.root,
                model=f"scripted:{asked.script}",
                tools=TOOLS,
                space=story.SPACE,
                capture=story.CAPTURE,
            )
        session = await home.session(asked.session)
        await session.submit(asked.say, request_id=asked.say)
        if asked.answer:
            await session.answer(*asked.answer.split("="))
        rest = (await session.drive(emit=show, take=asked.take)).rest
        return rest.waiting_for or rest.status


def reboot(file: str) -> None:
    """This process, and the supervisors that it starts, live in another boot."""
    boot.pretend(file)
    ours = launch.spaced_command()
    launch.spaced_command = lambda *arguments: [*ours[:-1], boot.__file__, file, ours[-1], *arguments]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("home", "root", "script"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--session", default=SESSION)
    parser.add_argument("--say", default="go", help="the submission, and its request id")
    parser.add_argument("--answer", metavar="WAIT=ANSWER", help="a person's word on what the session waits for")
    parser.add_argument("--rules", metavar="JSON", help="the table of permissions to go by")
    parser.add_argument("--take", action="store_true")
    parser.add_argument("--boot", metavar="FILE", help="holds the boot id that the kernel is to have")
    return parser.parse_args()


if __name__ == "__main__":
    steps.listen("driver")
    os.environ[steps.ENVIRONMENT] = os.environ.pop("SPACED_STEPS", "")
    asked = arguments()
    if asked.boot:
        reboot(asked.boot)
    try:
        print(asyncio.run(main(asked)))
    except PerdureError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
