"""What a session took, in words: tokens, what of them the provider's cache had, and what it cost by the price list of each day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perdure.history.line import shorten
from perdure.record.parts import Usage


def spending(tokens: Usage) -> str:
    """In one line. Where no price is known that is said; a model that costs nothing has none."""
    read = f"{tokens.cached:,} from the cache" if tokens.cached else ""
    written = f"{tokens.written:,} written to {'it' if read else 'the cache'}" if tokens.written else ""
    cache = ", ".join(filter(None, (read, written)))
    said = f"{tokens.input:,} tokens in{f' ({cache})' if cache else ''}, {tokens.output:,} out"
    price = _price(tokens)
    return f"{said}; {price}" if price else said


def spent_lines(models: Mapping[str, Usage]) -> Iterator[str]:
    """A line for each model, and the sum where there are several. None for what took nothing."""
    spent = {name: tokens for name, tokens in models.items() if tokens != Usage()}
    for name, tokens in spent.items():
        yield f"{shorten(name, 60) or 'model'}: {spending(tokens)}"
    if len(spent) > 1:
        yield f"together: {spending(sum(spent.values(), Usage()))}"


def _price(tokens: Usage) -> str:
    if not tokens.unpriced:
        return _dollars(tokens.cost_usd) if tokens.cost_usd else ""
    if not tokens.cost_usd:
        return "price unknown"
    return f"{_dollars(tokens.cost_usd)}, and {tokens.unpriced:,} tokens whose price is unknown"


def _dollars(cost_usd: float) -> str:
    return f"${cost_usd:,.2f}" if cost_usd >= 1 else f"${cost_usd:.4f}"
