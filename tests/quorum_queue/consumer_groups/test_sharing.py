"""Partitions are shared out evenly, and no more of them move than necessary."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from quorum_queue.consumer_groups.sharing import share


@given(
    st.integers(0, 40), st.lists(st.integers(0, 9), unique=True), st.lists(st.integers(0, 12), max_size=40)
)
def test_it_is_even_and_keeps_what_it_can(count: int, members: list[int], before: list[int]) -> None:
    partitions = list(range(count))
    owners = dict(zip(partitions, before, strict=False))
    shared = share(partitions, members, owners)
    if not members:
        assert shared == {}
        return
    assert sorted(shared) == partitions
    sizes = Counter(dict.fromkeys(members, 0))
    sizes.update(shared.values())
    assert set(sizes) == set(members)
    assert max(sizes.values()) - min(sizes.values()) <= 1
    # No member loses a partition and gets another one.
    for member in members:
        had = {each for each in partitions if owners.get(each) == member}
        has = {each for each in partitions if shared[each] == member}
        assert had <= has or has <= had


@given(st.integers(0, 6), st.integers(1, 3), st.lists(st.integers(0, 3), max_size=6))
def test_no_even_way_moves_fewer(count: int, member_count: int, before: list[int]) -> None:
    partitions, members = list(range(count)), list(range(member_count))
    owners = dict(zip(partitions, before, strict=False))
    shared = share(partitions, members, owners)
    least, larger = divmod(count, member_count)
    slots = [member for member in members for _ in range(least)]
    best = count
    for more in permutations(members, larger):
        for way in set(permutations([*slots, *more])):
            best = min(best, sum(owners.get(each) != to for each, to in zip(partitions, way, strict=True)))
    assert sum(owners.get(each) != shared[each] for each in partitions) == best


def test_who_joins_gets_a_fair_share_and_who_leaves_hands_it_on() -> None:
    partitions = list(range(8))
    one = share(partitions, ["a"], {})
    two = share(partitions, ["a", "b"], one)
    assert sum(one[each] != two[each] for each in partitions) == 4
    three = share(partitions, ["a", "b", "c"], two)
    assert sum(two[each] != three[each] for each in partitions) == 2
    back = share(partitions, ["a", "c"], three)
    assert sum(three[each] != back[each] for each in partitions) == 3
    assert all(back[each] == three[each] for each in partitions if three[each] != "b")
