"""One run of the campaign, all of it chosen by a seed: what the session's script does, who works beside it, and what is done to it.

The workspace is laid out so that what has to be there follows from each call alone: call k has a folder `c<k>` of its own, and beside it adds a token to a
log that all share. People have a folder for each thing they do, and now and then work in the session's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.chaos import people
from perdure.chaos.effects import Effect, Folder, Link, Many, Mode, Move, Put, Remove
from perdure.chaos.files import Files, folder, text
from perdure.chaos.people import Deed

SHARED = "shared/log.txt"
CHAIN, CHAIN_END = "chain.txt", "END"
NOTES = "notes.md"
LOOSE = ("bg", "count")
"""Names in a call's folder that are judged apart: what a background process writes at its own pace, and a counter."""

TURN = "Turn"
"""How the texts of turns with calls begin."""

SPARE_TURNS = 24
PEOPLE_PART = 1 / 3
GIT_PART = 1 / 5
DUEL_PART = 1 / 5
BIG_BYTES = (100_000, 300_000, 1_300_000)
REACH = {"driver": 70, "spaced": 150}
"""So many steps the session takes at most, about; and so many a recovery."""

REACH_AGAIN = {"driver": 25, "spaced": 60}
ACTIONS = ("kill", "kill", "kill", "stop")

Space = Literal["host", "sandbox"]
Act = Literal[
    "kill_driver",
    "kill_supervisor",
    "kill_both",
    "kill_command",
    "stop_driver",
    "stop_supervisor",
    "stop_both",
    "stop_command",
    "thaw",
    "term_driver",
    "race",
    "take",
    "watch",
    "submit",
    "submit_killed",
    "steer",
    "abort",
    "hold_lock",
    "people",
]
ACTS: dict[Act, int] = {
    "kill_driver": 14,
    "kill_supervisor": 12,
    "kill_both": 16,
    "kill_command": 4,
    "stop_driver": 6,
    "stop_supervisor": 4,
    "stop_both": 3,
    "stop_command": 3,
    "thaw": 8,
    "term_driver": 4,
    "race": 6,
    "take": 5,
    "watch": 3,
    "submit": 4,
    "submit_killed": 3,
    "steer": 3,
    "abort": 2,
    "hold_lock": 1,
}


class Call(Struct, frozen=True):
    """One scripted call. `token` goes to the log that all share; `counted` ones raise a counter by their key; `git` ones commit."""

    index: int
    tool: str
    args: dict[str, Any]
    effects: tuple[Effect, ...] = ()
    token: bool = False
    counted: bool = False
    git: bool = False

    @property
    def folder(self) -> str:
        return f"c{self.index}"

    @property
    def mark(self) -> str:
        return f"<call {self.index}>"

    @property
    def reads(self) -> bool:
        return self.tool in ("read", "list", "search")


class Step(Struct, frozen=True):
    """An instant inside a process to do something at: its n-th step, or its n-th of a name (`perdure.spaced.steps`)."""

    role: Literal["driver", "spaced"]
    at: int | str
    action: str


class Duel(Struct, frozen=True):
    """A driver is frozen when it has committed that its n-th command starts, and has not asked for it yet; another one takes over.

    It is thawed when the other one has gone on for `pause_s` (`late`), or while that one is about to raise the fence (`between`), and the fence then
    meets a command that has run for `pause_s`.
    """

    kind: Literal["late", "between"]
    nth: int
    pause_s: float

    @property
    def frozen(self) -> Step:
        return Step("driver", f"op.before.bash@{self.nth}", "stop")


FENCING = Step("driver", "recover.announced@1", "stop")


class Life(Struct, frozen=True):
    """One driver, and what happens to it: after each pause in seconds an act. `drop_state`: the Space's folder is deleted before."""

    step: Step | None
    acts: tuple[tuple[float, Act], ...]
    duel: Duel | None = None
    drop_state: bool = False
    people_before: int = 0
    rested: bool = False


class Plan(Struct, frozen=True):
    seed: int
    space: Space
    capture: str
    git: bool
    turns: tuple[tuple[Call, ...], ...]
    said: tuple[dict[str, Any], ...]
    """How each turn's text comes: `text`, `chunks`, `delay_s`."""

    lives: tuple[Life, ...]
    deeds: tuple[Deed, ...]

    @property
    def calls(self) -> list[Call]:
        return [call for turn in self.turns for call in turn]

    def before(self) -> Files:
        """What lies in the workspace when the session begins."""
        files: Files = {"shared": folder(), SHARED: text("begin\n"), CHAIN: text(f"list: {CHAIN_END}\n"), NOTES: text("notes\n")}
        for call in self.calls:
            files |= given(call)
        for deed in self.deeds:
            files |= people.given(deed)
        if self.deeds:
            files[people.HOME] = folder()
        return files

    def script(self, path: Path) -> Path:
        """Write it as a model's script."""
        turns: list[dict[str, Any]] = [
            {**said, "calls": [{"tool": call.tool, "args": call.args} for call in turn]}
            for said, turn in zip(self.said, self.turns, strict=True)
        ]
        turns += [{"text": f"Answer {n}."} for n in range(SPARE_TURNS)]
        path.write_bytes(msgspec.json.encode({"turns": turns}))
        return path


def given(call: Call) -> Files:
    """What a call finds in its folder."""
    at = call.folder
    names = {
        "keep.txt": "keep\n",
        "old.txt": "old\n",
        "gone.txt": "gone\n",
        "dir/a": "a\n",
        "dir/b": "b\n",
        "edit.txt": "x = 1\n",
    }
    files = {f"{at}/{name}": text(content) for name, content in names.items()}
    return {at: folder(), f"{at}/dir": folder(), **files}


def make(seed: int, space: Space, capture: str | None, calls: int) -> Plan:
    """The same arguments make the same plan. `capture` None: chosen by the seed."""
    rng = random.Random(seed)
    git = rng.random() < GIT_PART
    drawn = rng.choice(("auto", "scan", "watch", "strict"))
    with_people = rng.random() < PEOPLE_PART
    duel = _duel(rng) if rng.random() < DUEL_PART else None
    turns, said = _script(rng, calls, space, git, duel.nth if duel else 0)
    deeds = people.draw(rng, calls) if with_people else ()
    lives = _lives(rng, bool(deeds), duel)
    return Plan(seed, space, capture or drawn, git, turns, said, lives, deeds)


# ---- the script --------------------------------------------------------------------------------------------------------------


def _script(
    rng: random.Random, count: int, space: Space, git: bool, contested: int
) -> tuple[tuple[tuple[Call, ...], ...], tuple[dict[str, Any], ...]]:
    """`contested` is the number, from 1, of the command that drivers will meet at: it is slow, and leaves something running."""
    turns: list[tuple[Call, ...]] = []
    said: list[dict[str, Any]] = []
    index = 0
    calls = [_call(rng, index, space, git) for index in range(count)]
    commands = [call.index for call in calls if call.tool == "bash"]
    if contested and len(commands) >= contested:
        at = commands[contested - 1]
        calls[at] = _command(rng, at, space, git, ("daemon", "slow"))
    while index < count:
        size = min(rng.choice((1, 1, 1, 2, 3)), count - index)
        turns.append(tuple(calls[index : index + size]))
        said.append({"text": f"{TURN} {len(turns)}. " + "word " * 20, **_streamed(rng)})
        index += size
    return tuple(turns), tuple(said)


def _streamed(rng: random.Random) -> dict[str, Any]:
    return {"chunks": 4, "delay_s": round(rng.uniform(0.02, 0.3), 3)} if rng.random() < 0.2 else {}


def _call(rng: random.Random, index: int, space: Space, git: bool) -> Call:
    mark, at = f"<call {index}>", f"c{index}"
    match rng.choice(("bash",) * 7 + ("write", "edit", "read", "background")):
        case "write" if rng.random() < 0.5:
            return Call(index, "write", {"path": NOTES, "content": f"{mark}\n"}, (Put(NOTES, f"{mark}\n"),))
        case "write":
            content = "w" * rng.choice((20, 200_000))
            return Call(
                index,
                "write",
                {"path": f"{at}/new/w.txt", "content": content},
                (Folder(f"{at}/new"), Put(f"{at}/new/w.txt", content)),
            )
        case "edit" if rng.random() < 0.5:
            edits = [{"old_text": CHAIN_END, "new_text": f"{mark} {CHAIN_END}"}]
            return Call(index, "edit", {"path": CHAIN, "edits": edits})
        case "edit":
            edits = [{"old_text": "x = 1", "new_text": "x = 2"}]
            return Call(index, "edit", {"path": f"{at}/edit.txt", "edits": edits}, (Put(f"{at}/edit.txt", "x = 2\n"),))
        case "read":
            return rng.choice(
                (
                    Call(index, "read", {"path": SHARED}),
                    Call(index, "list", {"path": at, "depth": 2}),
                    Call(index, "search", {"pattern": "keep"}),
                )
            )
        case "background":
            lines = f"for k in 1 2 3 4; do echo $k >> {at}/bg; sleep 0.1; done"
            return Call(index, "bash", {"command": _counting(lines, at, index, space), "background": True}, counted=True)
        case _:
            return _command(rng, index, space, git)


KINDS = ("put", "slow", "move", "remove", "many", "big", "link", "mode", "daemon", "chatty")


def _command(rng: random.Random, index: int, space: Space, git: bool, kinds: Sequence[str] = ()) -> Call:
    at = f"c{index}"
    kinds = kinds or rng.sample(KINDS, rng.randint(1, 3))
    pieces: list[str] = []
    effects: list[Effect] = []
    for kind in kinds:
        for piece in _piece(rng, kind, at):
            if isinstance(piece, str):
                pieces.append(piece)
            else:
                effects.append(piece)
                pieces.append(piece.shell())
    commits = git and rng.random() < 0.4
    if commits:
        pieces.append(f"git add {at} && git -c user.name=a -c user.email=a@b commit -qm {at}")
    pieces.insert(rng.randint(0, len(pieces)), f"echo '<call {index}>' >> {SHARED}")
    return Call(
        index,
        "bash",
        {"command": _counting("; ".join(pieces), at, index, space)},
        tuple(effects),
        token=True,
        counted=True,
        git=commits,
    )


def _counting(command: str, at: str, index: int, space: Space) -> str:
    """It goes no further than its first failure, a killed part included. In a sandbox nothing outside can be reached, so the counter lies inside and is undone
    with the rest."""
    counter = f"../effects/{index}" if space == "host" else f"{at}/count"
    return f'set -eo pipefail; echo "$PERDURE_CALL_KEY" >> {counter}; {command}'


def _piece(rng: random.Random, kind: str, at: str) -> tuple[Effect | str, ...]:
    pause = f"sleep {rng.uniform(0.02, 0.2):.2f}"
    match kind:
        case "put":
            return (Put(f"{at}/put", f"put {rng.random()}"),)
        case "slow":
            return tuple(piece for k in range(3) for piece in (Put(f"{at}/slow{k}", f"{k}"), pause))
        case "move":
            return Move(f"{at}/dir", f"{at}/dir2"), pause, Put(f"{at}/dir2/c", "c"), Move(f"{at}/old.txt", f"{at}/dir2/old.txt")
        case "remove":
            return Remove(f"{at}/gone.txt"), pause, Put(f"{at}/gone.txt", "back"), Remove(f"{at}/gone.txt")
        case "many":
            return Folder(f"{at}/many"), Many(f"{at}/many", rng.choice((20, 60)))
        case "big":
            return Put(f"{at}/big", "x", rng.choice(BIG_BYTES)), pause
        case "link":
            return Link(f"{at}/link", "keep.txt"), pause
        case "mode":
            return Mode(f"{at}/keep.txt", 0o600), pause, Mode(f"{at}/edit.txt", 0o755)
        case "daemon":
            return (f"(setsid sh -c 'sleep 0.1; echo 1 >> {at}/bg; sleep 0.2; echo 2 >> {at}/bg' >/dev/null 2>&1 &)",)
        case _:
            return ("seq 1 20000",)


# ---- the violence ------------------------------------------------------------------------------------------------------------


def _duel(rng: random.Random) -> Duel:
    kind: Literal["late", "between"] = rng.choice(("late", "between"))
    return Duel(kind, rng.randint(1, 2), round(rng.uniform(0.2, 1.0) if kind == "late" else rng.uniform(0.02, 0.2), 3))


def _lives(rng: random.Random, with_people: bool, duel: Duel | None) -> tuple[Life, ...]:
    rested = rng.randint(0, 2) if with_people and rng.random() < 0.4 else -1
    first, *others = (_life(rng, n, with_people, n == rested) for n in range(rng.randint(2, 4)))
    return replace(first, duel=duel, step=None) if duel else first, *others


def _life(rng: random.Random, n: int, with_people: bool, rested: bool) -> Life:
    step = None
    if rng.random() < 0.45:
        role: Literal["driver", "spaced"] = rng.choice(("driver", "spaced"))
        reach = REACH[role] if n == 0 else REACH_AGAIN[role]
        step = Step(role, rng.randint(1, reach), rng.choice(ACTIONS))
    acts: list[tuple[float, Act]] = []
    for _ in range(rng.randint(1, 3)):
        act = rng.choices(list(ACTS), list(ACTS.values()))[0]
        acts.append((round(rng.uniform(0.0, 0.35) if n == 0 else rng.expovariate(8), 3), act))
    if with_people and rng.random() < 0.5:
        acts.insert(rng.randint(0, len(acts)), (round(rng.uniform(0, 0.1), 3), "people"))
    drop_state = n > 0 and rng.random() < 0.08
    people_before = rng.randint(0, 2) if with_people and (n > 0 or rested) else 0
    return Life(
        step,
        tuple(acts),
        drop_state=drop_state,
        people_before=max(people_before, int(rested)),
        rested=rested and n > 0,
    )
