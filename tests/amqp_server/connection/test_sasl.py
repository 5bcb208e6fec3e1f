import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.connection.login.sasl import MECHANISMS, Credentials, parse_response
from amqp_server.errors import CommandInvalid, SyntaxError_


def string(name: str, value: bytes, type_: bytes = b"S") -> bytes:
    return bytes((len(name),)) + name.encode() + type_ + struct.pack(">I", len(value)) + value


def amqplain(user: bytes, password: bytes) -> bytes:
    return string("LOGIN", user) + string("PASSWORD", password)


@pytest.mark.parametrize(
    ("response", "credentials"),
    [
        (b"\0guest\0guest", ("guest", "guest")),
        (b"\0ann\0", ("ann", "")),
        (b"\0\0", ("", "")),
        ("\0änn\0pässword".encode(), ("änn", "pässword")),
    ],
)
def test_plain_has_name_and_password_behind_nuls(response: bytes, credentials: tuple[str, str]) -> None:
    assert parse_response("PLAIN", response) == credentials


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"\x00",
        b"guest\x00guest",
        b"authzid\x00guest\x00guest",
        b"\x00a\x00b\x00c",
        b"\x00\xff\x00b",
        b"\x00" + b"u" * 256 + b"\x00p",
        b"\x00u\x00" + b"p" * 1025,
        b"\x00u\x00" + b"p" * 100000,
    ],
)
def test_a_malformed_plain_response_is_refused(response: bytes) -> None:
    with pytest.raises(SyntaxError_):
        parse_response("PLAIN", response)


def test_amqplain_takes_its_fields_in_any_order() -> None:
    assert parse_response("AMQPLAIN", amqplain(b"ann", b"secret")) == ("ann", "secret")
    swapped = string("PASSWORD", b"secret") + string("LOGIN", b"ann")
    assert parse_response("AMQPLAIN", swapped) == ("ann", "secret")


def test_amqplain_skips_other_fields() -> None:
    others = b"\x01aI\0\0\0\1" + b"\x01bt\1" + b"\x01cV" + string("d", b"\0\0", b"F") + b"\x01el" + bytes(8)
    assert parse_response("AMQPLAIN", others + amqplain(b"ann", b"secret")) == ("ann", "secret")


def test_amqplain_takes_the_first_of_two() -> None:
    twice = amqplain(b"ann", b"secret") + string("LOGIN", b"root")
    assert parse_response("AMQPLAIN", twice).user == "ann"


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (b"", "missing LOGIN or PASSWORD"),
        (string("LOGIN", b"ann"), "missing LOGIN or PASSWORD"),
        (string("LOGIN", b"ann") + b"\x08PASSWORDI\0\0\0\1", "unsupported type"),
        (b"\x05LOGINS\xff\xff\xff\xffann", "invalid"),
        (b"\x05LOGIN?", "invalid"),
        (b"\xffLOGIN", "invalid"),
        (amqplain(b"\xff", b"x"), "not UTF-8"),
        (amqplain(b"u" * 256, b"x"), "too long"),
    ],
)
def test_a_malformed_amqplain_response_is_refused(response: bytes, text: str) -> None:
    with pytest.raises(SyntaxError_, match=text):
        parse_response("AMQPLAIN", response)


def test_amqplain_at_every_cut() -> None:
    whole = amqplain(b"ann", b"secret")
    for cut in range(len(whole)):
        with pytest.raises(SyntaxError_):
            parse_response("AMQPLAIN", whole[:cut])


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(CommandInvalid, match="unknown authentication mechanism 'EXTERNAL'"):
        parse_response("EXTERNAL", b"")


def test_password_is_not_in_the_refusal() -> None:
    with pytest.raises(SyntaxError_) as refused:
        parse_response("PLAIN", b"guest\0canary-3141")
    assert "canary" not in refused.value.reply_text()
    assert "canary" not in repr(Credentials("ann", "canary-3141"))


@given(st.sampled_from(MECHANISMS), st.binary(max_size=200))
def test_any_bytes_give_credentials_or_the_right_error(mechanism: str, response: bytes) -> None:
    try:
        credentials = parse_response(mechanism, response)
    except SyntaxError_:
        return
    assert credentials.user.encode() in response


@given(st.text(max_size=60), st.text(max_size=60))
def test_what_goes_in_comes_out(user: str, password: str) -> None:
    told = parse_response("AMQPLAIN", amqplain(user.encode(), password.encode()))
    assert told == (user, password)
