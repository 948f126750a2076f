"""Hooks that tests name as `module:function`."""

from __future__ import annotations

from pathlib import Path

from perdure.program.hooks import AfterCall, BeforeCall, Ruling


def polite(call: BeforeCall) -> Ruling | None:
    print("this goes to standard error")
    if "rude" in call.args.get("command", ""):
        return Ruling("deny", "be polite")
    return None


async def shouting(call: BeforeCall) -> Ruling:
    return Ruling(args={**call.args, "command": call.args["command"].upper().replace("ECHO", "echo")})


def failing(call: BeforeCall) -> None:
    raise ValueError("no idea")


def noting(call: AfterCall) -> None:
    with Path("noted").open("a") as file:
        file.write(f"{call.tool} {call.outcome}\n")
