"""Tests of the judge of group storms: the errors that it must see, and events that are no error."""

from __future__ import annotations

import pytest

from tests.cluster.group_storm.judge import Judge

ENDS = {"s-0@0": 3}


def judged(
    lines: str, ends: dict[str, int] | None = None, letters: dict[str, int] | None = None
) -> list[str]:
    judge = Judge()
    for line in lines.splitlines():
        if line.strip():
            judge.line(line.strip())
    judge.finish(ENDS if ends is None else ends)
    judge.finish_letters(letters or {})
    return judge.errors


ALL_IS_WELL = """
    a.1 join 1
    a.1 d s-0@0 0 new 0
    a.1 a s-0@0 0
    a.1 d s-0@0 1 new 0
    a.1 r s-0@0 1
    a.1 d s-0@0 1 again 1
    a.1 a s-0@0 1
    a.1 d s-0@0 2 new 0
    a.1 a s-0@0 2
    a.1 q
    a.1 c
    a.1 leave
"""


def test_all_is_well() -> None:
    assert judged(ALL_IS_WELL) == []


@pytest.mark.parametrize(
    ("more", "ends", "error"),
    [
        ("b.1 join 1\nb.1 d s-0@0 1 again 1", ENDS, "b.1 gets s-0@0 1, which was acked"),
        ("", {"s-0@0": 4}, "s-0@0 has 4 messages, and 3 were seen"),
        ("b.1 join 1\nb.1 d s-0@0 4 new 0", {"s-0@0": 5}, "b.1 gets s-0@0 4 before 3"),
        (
            "b.1 join 1\nb.1 d s-0@0 3 new 0\nc.1 join 1\nc.1 d s-0@0 3 again 1\nc.1 a s-0@0 3",
            {"s-0@0": 4},
            "c.1 gets s-0@0 3, which b.1 has held",
        ),
    ],
)
def test_what_breaks_a_promise_is_seen(more: str, ends: dict[str, int], error: str) -> None:
    assert judged(ALL_IS_WELL + more, ends)[:1] == [error]


ANEW = """
    * move first
    * moved first s-0@0
    old.1 join 1
    * anew 1
    old.1 d s-0@1 0 new 0
    old.1 a s-0@1 0
    new.1 join 1
    new.1 d s-0@1 1 new 0
    new.1 a s-0@1 1
    late.1 join 1
"""


def test_a_member_that_asked_before_the_stream_was_deleted_may_be_heard_after_it_is_there_again() -> None:
    """The judge once reported its messages as missing after a reset: the member wrote that it joins before
    the operator wrote that the stream was deleted, and the judge took it for a member of the old stream.
    """
    assert judged(ANEW, {"s-0@1": 2}) == []


@pytest.mark.parametrize(
    ("more", "ends", "error"),
    [
        ("", {"s-0@1": 3}, "s-0@1 has 3 messages, and 2 were seen"),
        ("late.1 d s-0@1 3 new 0\nlate.1 a s-0@1 3", {"s-0@1": 4}, "late.1 gets s-0@1 3 before 2"),
        ("new.1 q\nnew.1 c\nlate.1 d s-0@1 1 again 1", {"s-0@1": 2}, "late.1 gets s-0@1 1, which was acked"),
    ],
)
def test_of_a_stream_that_was_declared_anew_all_is_known(more: str, ends: dict[str, int], error: str) -> None:
    assert error in judged(ANEW + more, ends)


def test_what_comes_late_of_a_stream_that_was_deleted_is_no_error() -> None:
    late = "old.1 d s-0@0 7 new 0\nold.1 a s-0@0 7\nold.1 q\nold.1 c"
    assert judged(ANEW + late, {"s-0@1": 2}) == []


RESET = """
    a.1 join 1
    a.1 d s-0@0 0 new 0
    a.1 a s-0@0 0
    a.1 q
    a.1 c
    * move first
    a.1 d s-0@0 1 new 0
    a.1 a s-0@0 1
    a.1 q
    a.1 c
    b.1 join 1
    b.1 d s-0@0 0 new 0
    b.1 a s-0@0 0
    b.1 d s-0@0 1 new 0
    b.1 a s-0@0 1
    * moved first s-0@0
    a.1 d s-0@0 1 new 0
    c.1 join 1
    c.1 d s-0@0 2 new 0
    c.1 a s-0@0 2
    c.1 q
    c.1 c
"""


def test_what_left_before_a_reset_may_be_told_after_it_and_is_no_error() -> None:
    assert judged(RESET) == []


@pytest.mark.parametrize(
    ("more", "ends", "error"),
    [
        ("", {"s-0@0": 4}, "of 4 messages of s-0@0 3 came after the reset"),
        ("d.1 join 1\nd.1 d s-0@0 2 again 1", ENDS, "d.1 gets s-0@0 2, which was acked"),
    ],
)
def test_after_a_reset_all_comes_again_and_acks_of_new_members_hold(
    more: str, ends: dict[str, int], error: str
) -> None:
    assert error in judged(RESET + more, ends)


@pytest.mark.parametrize("how", ["perhaps", "first s-1@0"])
def test_only_what_was_reset_for_certain_has_to_come_again(how: str) -> None:
    assert judged(ALL_IS_WELL + f"* move first\n* moved {how}\n") == []
    assert judged(ALL_IS_WELL + "* move first\n* moved first s-0@0\n") == [
        "of 3 messages of s-0@0 0 came after the reset"
    ]


def test_members_keep_what_they_hold_when_a_group_is_purged() -> None:
    purged = """
        a.1 join 1
        a.1 d s-0@0 0 new 0
        * move end
        * moved end
        b.1 join 1
        b.1 d s-0@0 2 new 0
    """
    assert judged(purged) == ["b.1 gets s-0@0 2 while a.1 holds 0"]
    assert judged(purged.replace("b.1 d", "a.1 d")) == []


REFUSED = """
    a.1 join 1
    a.1 d s-0@0 0 new 0
    a.1 x s-0@0 0
    a.1 q
    a.1 c
    a.1 d s-0@0 1 new 0
    a.1 d s-0@0 2 new 0
    * move end
    a.1 x s-0@0 1
    * moved end
"""


@pytest.mark.parametrize(("letters", "holds"), [(0, False), (1, True), (2, True), (3, False)])
def test_dead_letters_are_those_that_were_refused(letters: int, holds: bool) -> None:
    assert (judged(REFUSED, letters={"s-0@0": letters}) == []) is holds


def test_a_message_that_is_refused_again_after_a_reset_is_another_letter() -> None:
    again = "* move first\n* moved first s-0@0\nb.1 join 1\n" + "".join(
        f"b.1 d s-0@0 {offset} new 0\nb.1 x s-0@0 {offset}\n" for offset in range(3)
    )
    assert judged(REFUSED + again + "b.1 q\nb.1 c\n", letters={"s-0@0": 5}) == []
    assert judged(REFUSED + again + "b.1 q\nb.1 c\n", letters={"s-0@0": 2}) != []
