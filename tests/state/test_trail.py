"""A trail's versions share their items and never see each other's additions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.state.trail import Trail


def test_an_older_version_stays_as_it_was() -> None:
    one = Trail([1])
    two = one.add(2)
    other = one.add(3)
    assert (list(one), list(two), list(other)) == ([1], [1, 2], [1, 3])


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(), max_size=3)), max_size=30))
def test_any_tree_of_versions_equals_plain_lists(steps: list[tuple[int, list[int]]]) -> None:
    trails: list[Trail[int]] = [Trail()]
    lists: list[list[int]] = [[]]
    for at, items in steps:
        parent = at % len(trails)
        trails.append(trails[parent].add(*items))
        lists.append(lists[parent] + items)
    assert [list(t) for t in trails] == lists
    assert all(t[-1] == want[-1] and t[0:2] == want[0:2] for t, want in zip(trails, lists, strict=True) if want)
