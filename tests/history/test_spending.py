from __future__ import annotations

import pytest

from perdure.history.spending import spending, spent_lines
from perdure.record.parts import Usage


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (Usage(1200, 30), "1,200 tokens in, 30 out"),
        (Usage(1200, 30, 800, cost_usd=0.01234), "1,200 tokens in (800 from the cache), 30 out; $0.0123"),
        (Usage(1200, 30, 0, 200, unpriced=1230), "1,200 tokens in (200 written to the cache), 30 out; price unknown"),
        (
            Usage(1200, 30, 800, 200, 12.5, 400),
            "1,200 tokens in (800 from the cache, 200 written to it), 30 out; $12.50, and 400 tokens whose price is unknown",
        ),
    ],
)
def test_tokens_cache_and_price_are_told(tokens: Usage, said: str) -> None:
    assert spending(tokens) == said


def test_each_model_has_a_line_and_several_have_a_sum() -> None:
    assert list(spent_lines({"a:x": Usage(5, 1), "b:y": Usage()})) == ["a:x: 5 tokens in, 1 out"]
    assert list(spent_lines({"a:x": Usage(5, 1), "b:y": Usage(7, 2)}))[-1] == "together: 12 tokens in, 3 out"
