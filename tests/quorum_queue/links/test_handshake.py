"""The handshake without sockets, and what an attacker may try."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_queue.links.handshake import (
    MAC_BYTES,
    MESSAGE_BYTES_MAX,
    Acceptor,
    Dialler,
    Hello,
    Keys,
    PeerRefused,
    Standing,
    check_size,
)

KEYS = Keys(b"k" * 32)
N1 = Hello("n1", 7, "disk one", 1, ("a", "b"))
N2 = Hello("n2", 9, "disk two")
NEW = Standing(0, False)


def dialler(keys: Keys = KEYS, cluster: str = "c", to: str = "n2", nonce: bytes = b"1" * 32) -> Dialler:
    return Dialler(keys, cluster, N1, to, nonce)


def acceptor(keys: Keys = KEYS, cluster: str = "c", hello: Hello = N2, nonce: bytes = b"2" * 32) -> Acceptor:
    return Acceptor(keys, cluster, hello, nonce)


def transcript() -> tuple[bytes, bytes, bytes]:
    one, two = dialler(), acceptor()
    opened = one.open()
    two.opened(opened)
    answer = two.answer(NEW)
    return opened, answer, one.answer(answer, NEW)[0]


def test_both_learn_who_the_other_is() -> None:
    one, two = dialler(), acceptor()
    assert two.opened(one.open()) == N1
    finish, hello, standing = one.answer(two.answer(Standing(5, True)), Standing(3, False))
    assert hello == N2
    assert standing == Standing(5, True)
    assert two.finish(finish) == Standing(3, False)


@pytest.mark.parametrize(
    "strange",
    [dialler(keys=Keys(b"x" * 32)), dialler(cluster="d"), dialler(to="n3")],
    ids=["secret", "cluster", "to"],
)
def test_an_acceptor_refuses_another_secret_cluster_or_name(strange: Dialler) -> None:
    with pytest.raises(PeerRefused) as refused:
        acceptor().opened(strange.open())
    assert refused.value.suspect


def test_dialler_refuses_another_secret_and_another_name() -> None:
    for hello, keys in ((N2, Keys(b"x" * 32)), (Hello("n3", 1, ""), KEYS)):
        one = dialler()
        # An acceptor that accepts everything, but does not have the right key.
        two = acceptor(hello=hello, keys=keys)
        two._before = b"".join((len(one.open()).to_bytes(4, "big"), one.open()))
        with pytest.raises(PeerRefused):
            one.answer(two.answer(NEW), NEW)


def test_a_nodes_own_message_is_no_answer_to_itself() -> None:
    """A node's own message is no valid answer to itself, on this connection or on another."""
    one = dialler()
    with pytest.raises(PeerRefused):
        one.answer(one.open(), NEW)
    with pytest.raises(PeerRefused, match="n2"):
        acceptor(hello=N1).opened(one.open())
    two = acceptor()
    two.opened(one.open())
    with pytest.raises(PeerRefused):
        two.finish(two.answer(NEW))


def test_an_answer_is_of_no_use_in_the_other_role() -> None:
    """An attacker who gets an answer from a node by dialling it can't use it on that node's own dials, nor to
    finish a handshake.
    """
    attacker_opens, answer, finish = transcript()
    with pytest.raises(PeerRefused):
        Dialler(KEYS, "c", N2, "n1", b"3" * 32).answer(answer, NEW)
    two = acceptor()
    two.opened(attacker_opens)
    two.answer(NEW)
    # The keys differ for each kind of message, so a message with its kind changed is invalid.
    with pytest.raises(PeerRefused):
        two.finish(answer[:5] + b"\x03" + answer[6:])
    with pytest.raises(PeerRefused):
        acceptor().opened(finish[:5] + b"\x01" + finish[6:])


def test_replay_of_an_old_transcript() -> None:
    opened, answer, finish = transcript()
    two = acceptor(nonce=b"fresh" + bytes(27))
    two.opened(opened)
    two.answer(NEW)
    with pytest.raises(PeerRefused):
        two.finish(finish)
    one = dialler(nonce=b"fresh" + bytes(27))
    with pytest.raises(PeerRefused):
        one.answer(answer, NEW)


def test_standing_is_proved_too() -> None:
    one, two = dialler(), acceptor()
    two.opened(one.open())
    answer = bytearray(two.answer(NEW))
    answer[-MAC_BYTES - 33] ^= 1
    with pytest.raises(PeerRefused):
        one.answer(bytes(answer), NEW)


def readers() -> list[tuple[bytes, Callable[[bytes], object]]]:
    """Each message of a good handshake, and the call that reads it."""
    opened, answer, finish = transcript()
    two = acceptor()
    two.opened(opened)
    two.answer(NEW)
    return [
        (opened, lambda data: acceptor().opened(data)),
        (answer, lambda data: dialler().answer(data, NEW)),
        (finish, two.finish),
    ]


@pytest.mark.parametrize("index", range(3))
def test_cut_short_and_with_trailing_data(index: int) -> None:
    message, read = readers()[index]
    read(message)
    for length in range(len(message)):
        with pytest.raises(PeerRefused):
            read(message[:length])
    for more in (b"\0", b"\0" * MAC_BYTES, message):
        with pytest.raises(PeerRefused):
            read(message + more)


@pytest.mark.parametrize("index", range(3))
def test_every_bit_counts(index: int) -> None:
    message, read = readers()[index]
    for place in range(len(message) * 8):
        changed = bytearray(message)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(PeerRefused):
            read(bytes(changed))


@given(st.binary(max_size=2 * MESSAGE_BYTES_MAX), st.integers(0, 2))
def test_any_bytes_are_refused(data: bytes, index: int) -> None:
    message, read = readers()[index]
    for candidate in (data, message[:6] + data):
        with pytest.raises(PeerRefused):
            read(candidate)


@given(st.binary(max_size=200))
def test_any_bytes_of_one_who_knows_the_secret(data: bytes) -> None:
    """A right MAC alone does not make a message right."""
    from quorum_queue.links.handshake import _head, _sealed

    with pytest.raises(PeerRefused):
        acceptor().opened(_sealed(KEYS.open, b"", _head(1) + data))


def test_nothing_secret_is_shown() -> None:
    secret = b"correct horse battery staple"
    keys = Keys(secret)
    shown = b"".join((dialler(keys).open(), repr(keys).encode()))
    assert secret not in shown
    for key in (keys.open, keys.answer, keys.finish):
        assert key not in shown and repr(key).encode() not in shown
    assert len({keys.open, keys.answer, keys.finish}) == 3


def test_short_secret_and_long_names() -> None:
    with pytest.raises(ValueError, match="16"):
        Keys(b"short")
    with pytest.raises(ValueError, match="1024"):
        check_size("c", Hello("n", 1, "i", 1, ("feature" * 10,) * 14))
    check_size("c" * 64, Hello("n" * 64, 1 << 63, "i" * 64, 1, ("feature",) * 20))
