"""The line of every key, held against what tomllib reads."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.config.lines import Place, lines

TEXT = '''\
# first
model = "a#b"   # not "this"
"quoted.key" = 'x'

[ budget ]
turns = 5
a . "b c" . d = 1_000

list = [
  1,  # one
  [2,
   3],
  { x = "]}", y.z = 2 },
]
long = """
[no] = 1
a = \\""" still
"""""
raw = \'\'\'
key = 2\'\'\'
when = 1979-05-27 07:32:00

[[item]]
name = 'first'
[item.sub]
x = 1
[[item]]
name = "second"
  [[item.deep]]
  y = 1
  [[item.deep]]
  y = 2
'''


def places(value: Any, at: Place = ()) -> set[Place]:
    """Every path there is in a value that was read."""
    found = {at} if at else set()
    if isinstance(value, dict):
        for name, each in value.items():
            found |= places(each, (*at, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            found |= places(each, (*at, index))
    return found


def test_every_key_and_element_stands_where_a_reader_sees_it() -> None:
    found = lines(TEXT)
    assert set(found) == places(tomllib.loads(TEXT))
    rows = TEXT.splitlines()
    assert found[("model",)] == 2
    assert found[("quoted.key",)] == 3
    assert found[("budget",)] == 5
    assert rows[found[("budget", "turns")] - 1] == "turns = 5"
    assert rows[found[("budget", "a", "b c", "d")] - 1].startswith("a .")
    assert [rows[found[("budget", "list", *at)] - 1].strip() for at in ((0,), (1, 0), (1, 1), (2, "y", "z"))] == [
        "1,  # one",
        "[2,",
        "3],",
        '{ x = "]}", y.z = 2 },',
    ]
    assert rows[found[("budget", "raw")] - 1].startswith("raw")
    assert rows[found[("budget", "when")] - 1].startswith("when")
    assert [rows[found[("item", n, "name")] - 1].split(" = ")[1] for n in (0, 1)] == ["'first'", '"second"']
    assert [rows[found[("item", 1, "deep", n, "y")] - 1].strip() for n in (0, 1)] == ["y = 1", "y = 2"]


KEY = st.one_of(st.from_regex(r"\A[A-Za-z0-9_-]{1,4}\Z"), st.sampled_from(['"a.b"', "'c d'", '"\\u00e9]"']))
SCALAR = st.sampled_from(["1", "-2.5", "true", '"#]}="', "'\\'", '"""\n[x]\n"""', "'''\n#\n'''", "07:32:00", '""', "''", '"\\""'])
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: "[ # x ]\n" + ",\n".join(each) + "\n]"),
        st.lists(st.tuples(KEY, inner.filter(lambda text: "\n" not in text)), max_size=2, unique_by=lambda pair: pair[0]).map(
            lambda pairs: "{" + ", ".join(f"{name} = {value}" for name, value in pairs) + "}"
        ),
    ),
    max_leaves=6,
)
PAIR = st.tuples(st.lists(KEY, min_size=1, max_size=2).map(".".join), VALUE).map(" = ".join)
HEADER = st.tuples(st.booleans(), st.lists(KEY, min_size=1, max_size=2).map(" . ".join)).map(
    lambda header: f"[[{header[1]}]]" if header[0] else f"[{header[1]}]"
)


@given(st.lists(st.one_of(PAIR, HEADER, st.just("# remark [x]"), st.just("")), max_size=8).map("\n".join))
def test_whatever_tomllib_reads_has_a_line_for_all_of_it(text: str) -> None:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = lines(text)
    assert set(found) == places(table)
    assert all(1 <= line <= text.count("\n") + 1 for line in found.values())


@pytest.mark.parametrize("text", ["", "\n\n", "# only", "a=1", "a=[]", "a={}", "[t]"])
def test_short_texts(text: str) -> None:
    assert set(lines(text)) == places(tomllib.loads(text))
