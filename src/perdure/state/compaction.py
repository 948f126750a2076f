"""What a compaction leaves of a thread: a note that begins with what the log knows exactly, the model's summary, and the turns behind the cut.

Open calls need no word: a cut lies where a turn began, and a call's result is in the turn of the call.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.record.parts import Part, Text
from perdure.state.changes import Changes
from perdure.state.entries import Entry, Returned, Said, uncertain

UNCERTAIN_KEPT = 50
WORDS_CHARS = 4000
PATHS_SHOWN = 200
STEERS_KEPT = 20
SUMMARY_CHARS = 64_000


def note(summary: str, uncertain: Sequence[Returned], instructions: Sequence[Said], changes: Changes) -> Said:
    """`uncertain` are the calls behind which an effect may be, `instructions` those that still hold and are not behind the cut."""
    parts: list[Part] = [Text("\n\n".join(_exact(uncertain, changes)))]
    if instructions:
        parts.append(Text("\n\nThe newest instructions, word for word:\n"))
        for said in instructions:
            parts.extend((*said.parts, Text("\n")))
    parts.append(Text(f"\nThe summary:\n{summary[:SUMMARY_CHARS]}"))
    return Said(tuple(parts), note=True)


def _exact(uncertain: Sequence[Returned], changes: Changes) -> list[str]:
    said = [
        "[perdure] The conversation before this is summed up here. What comes before the summary is exact. The result of each call that you know the "
        'number of can still be read: read with path "output:NUMBER".'
    ]
    if uncertain:
        calls = "\n".join(f"- {each.tool} ({each.outcome}, output:{each.call}): {each.text[:WORDS_CHARS]}" for each in uncertain)
        said.append(f"Calls that were cut off or whose effect is unknown; look before you repeat one:\n{calls}")
    if changes.paths:
        newest = list(changes.paths)[-PATHS_SHOWN:]
        more = len(changes.paths) - len(newest) + changes.forgotten
        paths = "\n".join(f"  {path}" for path in newest) + (f"\n  … and {more} earlier changes" if more else "")
        said.append(f"Paths that your calls in this session have changed:\n{paths}")
    return said


def still_uncertain(earlier: tuple[Returned, ...], entries: Sequence[Entry]) -> tuple[Returned, ...]:
    new = [entry for entry in entries if isinstance(entry, Returned) and uncertain(entry)]
    return (*earlier, *new)[-UNCERTAIN_KEPT:]


def instructed(instructions: tuple[Said, ...], said: Said, *, steer: bool) -> tuple[Said, ...]:
    """The newest prompt, and what was said to steer since."""
    return (instructions[0], *instructions[1:][-STEERS_KEPT + 1 :], said) if steer and instructions else (said,)
