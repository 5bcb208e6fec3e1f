"""Which messages a shovel acks at the source, whatever the destination confirms and in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.shovels.errors import PeerError, ShovelError
from amqp_server.shovels.session import Cancelled, Delivery, Returned, Settled
from amqp_server.shovels.transfer import NO_ACK, ON_CONFIRM, ON_PUBLISH, Transfer


class Outbox:
    bytes = 0


class Session:
    """Notes the calls that it gets."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.blocked = False
        self.published: list[bytes] = []
        self.unsettled: dict[int, None] = {}
        self.settled: list[int] = []
        self.requeued: list[int] = []
        self.acks = 0

    def publish(self, method: bytes, header: bytes, body: list[bytes]) -> None:
        self.published.append(method)

    def settle(self, tag: int, *, multiple: bool = False) -> None:
        assert tag in self.unsettled
        self.acks += 1
        tags = [each for each in self.unsettled if each <= tag] if multiple else [tag]
        for each in tags:
            del self.unsettled[each]
            self.settled.append(each)

    def requeue(self, tag: int) -> None:
        del self.unsettled[tag]
        self.requeued.append(tag)


class Scene:
    def __init__(self, **options: Any) -> None:
        self.source, self.destination = Session(), Session()
        given = {"ack_mode": ON_CONFIRM, "prefetch": 1_000, "bytes_max": 1_000} | options
        address = lambda delivery: (str(delivery.tag).encode(), delivery.header)  # noqa: E731
        self.transfer = Transfer(self.source, self.destination, address, **given)  # type: ignore[arg-type]

    def deliver(self, *tags: int, size: int = 10) -> None:
        for tag in tags:
            self.source.unsettled[tag] = None
            self.transfer.from_source(Delivery(tag, b"", b"", b"", [b"b" * size]))

    def confirm(self, *settled: Settled) -> None:
        for each in settled:
            self.transfer.from_destination(each)
        self.transfer.flush()


def taken(number: int, *, multiple: bool = False) -> Settled:
    return Settled(number, multiple, True)


def test_nothing_is_acked_before_its_confirm() -> None:
    scene = Scene()
    scene.deliver(1, 2, 3, 4)
    scene.transfer.flush()
    assert (scene.source.settled, len(scene.destination.published)) == ([], 4)
    scene.confirm(taken(3))
    assert scene.source.settled == [3]
    scene.confirm(taken(2, multiple=True))
    assert scene.source.settled == [3, 1, 2] and scene.source.acks == 2
    assert scene.transfer.forwarded == 3 and scene.transfer.unconfirmed_count == 1


def test_what_is_confirmed_without_a_gap_is_one_ack() -> None:
    scene = Scene()
    scene.deliver(*range(11, 31))
    scene.confirm(*(taken(number) for number in range(10, 0, -1)))
    assert sorted(scene.source.settled) == list(range(11, 21)) and scene.source.acks == 1


def test_what_is_refused_goes_back() -> None:
    scene = Scene(remaining=3)
    scene.deliver(1, 2, 3)
    assert scene.transfer.held
    scene.confirm(taken(1), Settled(2, False, False), taken(3))
    assert (scene.source.requeued, sorted(scene.source.settled)) == ([2], [1, 3])
    assert not scene.transfer.done and not scene.transfer.held and scene.transfer.refusals == 0
    scene.deliver(4)
    scene.confirm(Settled(4, False, False))
    assert scene.transfer.refusals == 1
    scene.deliver(5)
    scene.confirm(taken(5))
    assert scene.transfer.done and not scene.source.unsettled


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans())))
    ),
)
def test_only_what_was_confirmed_is_acked(steps: list[tuple[int, list[tuple[int, bool, bool]]]]) -> None:
    scene, number, outcome = Scene(), 0, dict[int, bool]()
    for count, confirms in steps:
        scene.deliver(*range(number + 1, number + count + 1))
        number += count
        for at, multiple, good in confirms:
            if not number:
                continue
            tag = at % number + 1
            for each in range(1 if multiple else tag, tag + 1):
                outcome.setdefault(each, good)
            scene.transfer.from_destination(Settled(tag, multiple, good))
        scene.transfer.flush()
        assert sorted(scene.source.settled) == sorted(each for each, good in outcome.items() if good)
        assert sorted(scene.source.requeued) == sorted(each for each, good in outcome.items() if not good)
        assert scene.transfer.unconfirmed_count == number - len(outcome)


def test_on_publish_acks_at_once_and_no_ack_never() -> None:
    scene = Scene(ack_mode=ON_PUBLISH, remaining=5)
    scene.deliver(1, 2, 3)
    scene.transfer.flush()
    assert scene.source.settled == [1, 2, 3] and scene.source.acks == 1 and scene.transfer.remaining == 2
    scene = Scene(ack_mode=NO_ACK)
    scene.deliver(1, 2)
    scene.transfer.flush()
    assert scene.source.settled == [] and scene.transfer.forwarded == 2


def test_the_source_waits_for_the_destination() -> None:
    scene = Scene(bytes_max=100)
    scene.deliver(1, size=99)
    assert not scene.transfer.held
    scene.deliver(2)
    assert scene.transfer.held
    scene.confirm(taken(1))
    assert not scene.transfer.held
    scene.destination.outbox.bytes = 100
    assert scene.transfer.held
    scene.destination.outbox.bytes = 0
    scene.destination.blocked = True
    assert scene.transfer.held and scene.transfer.destination_blocked


def test_brokers_that_break_the_rules() -> None:
    scene = Scene(prefetch=2)
    scene.deliver(1, 2)
    with pytest.raises(PeerError, match="more messages than the prefetch count"):
        scene.deliver(3)
    for number in (0, 4):
        with pytest.raises(PeerError, match="confirmed a message that it was not sent"):
            scene.confirm(taken(number))
    with pytest.raises(ShovelError, match="has not reached the queue at the destination: 312 NO_ROUTE"):
        scene.transfer.from_destination(Returned("312 NO_ROUTE"))
    with pytest.raises(ShovelError, match="cancelled"):
        scene.transfer.from_source(Cancelled())
    with pytest.raises(PeerError):
        scene.transfer.from_source(taken(1))
