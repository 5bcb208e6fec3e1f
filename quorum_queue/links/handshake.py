"""Two nodes prove to each other that they know the cluster's secret, without showing it. Pure: nonces come in
as data.

Three messages; the node that dials speaks first, and the other is silent until that message is valid:

    1  dialler  -> acceptor   OPEN      cluster, whom it wants, hello, nonce, MAC
    2  acceptor -> dialler    ANSWER    hello, standing, nonce, MAC over 1 and 2
    3  dialler  -> acceptor   FINISH    standing, MAC over 1, 2 and 3

Each MAC is HMAC-SHA256 under a key of its own, derived from the secret for that message, so an attacker
cannot reuse a message in another direction or place (reflection). The first MAC only keeps strangers from
getting an answer: a replay of it gets an ANSWER and nothing else. Message 2 is the proof for the dialler,
whose nonce it covers, and message 3 for the acceptor; both cover all earlier messages, names and cluster
included.

Frames after the handshake carry no MAC. On a network where others can write into a TCP stream, or read it,
configure TLS for the links: it protects every byte, and the handshake then runs inside it. An attacker who
can read a handshake can try secrets against it offline, so the secret has to be random and long, not a word.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass

MAGIC = b"MQDL"
#: Version of the handshake and the framing. Peers with another version are refused.
PROTOCOL = 1
OPEN, ANSWER, FINISH = 1, 2, 3

NONCE_BYTES = 32
MAC_BYTES = 32
#: Bytes of one message before authentication: a stranger can make a node hold no more.
MESSAGE_BYTES_MAX = 1024
SECRET_BYTES_MIN = 16

_HEAD = struct.Struct(">4sBB")
_NUMBERS = struct.Struct(">QHB")
_STANDING = struct.Struct(">Q?")
_LENGTH = struct.Struct(">I")


class PeerRefused(Exception):
    """The other side is refused. The text is only for our own log, not for the wire."""

    def __init__(self, text: str, *, suspect: bool = False) -> None:
        super().__init__(text)
        #: True if an operator has probably made a mistake; otherwise it is noise from the network.
        self.suspect = suspect


@dataclass(frozen=True)
class Hello:
    """A node's claimed identity. Proved once the handshake is done."""

    name: str
    #: Number of the node's start; it rises with each.
    incarnation: int
    #: Identity of the data directory.
    identity: str
    #: Version of the frames' contents.
    version: int = 1
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standing:
    """The sender's present sessions with the other side; `choice` uses it."""

    #: Sessions with any peer that the sender has begun since its start.
    adopted: int
    #: True if the sender holds a session with the other side.
    linked: bool


class Keys:
    """Derived from the cluster's secret, one for each message."""

    __slots__ = ("answer", "finish", "open")

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(
                f"the cluster secret has {len(secret)} bytes; at least {SECRET_BYTES_MIN} are needed"
            )
        self.open, self.answer, self.finish = (
            hmac.digest(secret, b"mqd link 1 " + purpose, "sha256")
            for purpose in (b"open", b"answer", b"finish")
        )

    def __repr__(self) -> str:
        return "<Keys>"


class Dialler:
    """The side that connected."""

    def __init__(self, keys: Keys, cluster: str, hello: Hello, to: str, nonce: bytes) -> None:
        self._keys, self._hello, self._to = keys, hello, to
        body = _head(OPEN) + _text(cluster) + _text(to) + _hello(hello) + _nonce(nonce)
        self._opened = _sealed(keys.open, b"", body)

    def open(self) -> bytes:
        """Return the first message."""
        return self._opened

    def answer(self, message: bytes, standing: Standing) -> tuple[bytes, Hello, Standing]:
        """Check the second message; return the third, and the identity of the other side. Raises Refused."""
        before = _framed(self._opened)
        reader = _Reader(message, ANSWER)
        hello, theirs = reader.hello(), reader.standing()
        reader.nonce_and_end()
        _verify(self._keys.answer, before, message)
        if hello.name != self._to:
            raise PeerRefused(f"it answers as {hello.name!r}", suspect=True)
        return (
            _sealed(self._keys.finish, before + _framed(message), _head(FINISH) + _standing(standing)),
            hello,
            theirs,
        )


class Acceptor:
    """The side that was connected to."""

    def __init__(self, keys: Keys, cluster: str, hello: Hello, nonce: bytes) -> None:
        self._keys, self._cluster, self._hello, self._nonce_bytes = keys, cluster, hello, nonce
        self._before = b""

    def opened(self, message: bytes) -> Hello:
        """Check the first message; return its claimed sender, not proved yet. Raises Refused."""
        reader = _Reader(message, OPEN)
        cluster, to, hello = reader.text(), reader.text(), reader.hello()
        reader.nonce_and_end()
        _verify(self._keys.open, b"", message, hello.name)
        if cluster != self._cluster:
            raise PeerRefused(
                f"it is {hello.name!r} of the cluster {cluster!r}, not {self._cluster!r}", suspect=True
            )
        if to != self._hello.name:
            raise PeerRefused(f"{hello.name!r} looks for {to!r} at this address", suspect=True)
        if hello.name == to:
            raise PeerRefused(f"it claims to be {to!r}, which is this node", suspect=True)
        self._before = _framed(message)
        return hello

    def answer(self, standing: Standing) -> bytes:
        """Return the second message."""
        body = _head(ANSWER) + _hello(self._hello) + _standing(standing) + _nonce(self._nonce_bytes)
        message = _sealed(self._keys.answer, self._before, body)
        self._before += _framed(message)
        return message

    def finish(self, message: bytes) -> Standing:
        """Check the third message: after it the other side's identity is proved. Raises Refused."""
        reader = _Reader(message, FINISH)
        standing = reader.standing()
        reader.end()
        _verify(self._keys.finish, self._before, message)
        return standing


def check_size(cluster: str, hello: Hello) -> None:
    """Raise ValueError if this node's own messages would be too long."""
    longest = _head(OPEN) + _text(cluster) + _text("x" * 255) + _hello(hello) + bytes(NONCE_BYTES + MAC_BYTES)
    if not hello.name or len(longest) > MESSAGE_BYTES_MAX:
        raise ValueError(f"names and features of the node take more than {MESSAGE_BYTES_MAX} bytes")


def _head(kind: int) -> bytes:
    return _HEAD.pack(MAGIC, PROTOCOL, kind)


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise ValueError(f"{text[:32]!r}… has more than 255 bytes")
    return bytes((len(data),)) + data


def _hello(hello: Hello) -> bytes:
    numbers = _NUMBERS.pack(hello.incarnation, hello.version, len(hello.features))
    return _text(hello.name) + _text(hello.identity) + numbers + b"".join(map(_text, hello.features))


def _standing(standing: Standing) -> bytes:
    return _STANDING.pack(standing.adopted, standing.linked)


def _nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
    return nonce


def _framed(message: bytes) -> bytes:
    """The message with its length, so that no two sequences of messages have the same MAC."""
    return _LENGTH.pack(len(message)) + message


def _sealed(key: bytes, before: bytes, body: bytes) -> bytes:
    return body + hmac.digest(key, before + _framed(body), "sha256")


def _verify(key: bytes, before: bytes, message: bytes, claimed: str = "") -> None:
    body, mac = message[:-MAC_BYTES], message[-MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(key, before + _framed(body), "sha256"), mac):
        who = f"it claims to be {claimed!r}, but " if claimed else ""
        raise PeerRefused(
            f"{who}its proof of the cluster secret is wrong: do both nodes have the same secret?",
            suspect=True,
        )


class _Reader:
    """Parses one message. Raises Refused if it is malformed."""

    def __init__(self, message: bytes, kind: int) -> None:
        if len(message) > MESSAGE_BYTES_MAX or len(message) < _HEAD.size + MAC_BYTES:
            raise PeerRefused("it does not speak this protocol")
        magic, protocol, found = _HEAD.unpack_from(message)
        if magic != MAGIC or found != kind:
            raise PeerRefused("it does not speak this protocol")
        if protocol != PROTOCOL:
            raise PeerRefused(
                f"it speaks version {protocol} of the link protocol, not {PROTOCOL}", suspect=True
            )
        self._body, self._at = message[:-MAC_BYTES], _HEAD.size

    def _take(self, count: int) -> bytes:
        part = self._body[self._at : self._at + count]
        if len(part) != count:
            raise PeerRefused("a message of the handshake is cut short")
        self._at += count
        return part

    def text(self) -> str:
        try:
            return self._take(self._take(1)[0]).decode()
        except UnicodeDecodeError:
            raise PeerRefused("a name in the handshake is not UTF-8") from None

    def hello(self) -> Hello:
        name, identity = self.text(), self.text()
        incarnation, version, features = _NUMBERS.unpack(self._take(_NUMBERS.size))
        return Hello(name, incarnation, identity, version, tuple(self.text() for _ in range(features)))

    def standing(self) -> Standing:
        return Standing(*_STANDING.unpack(self._take(_STANDING.size)))

    def nonce_and_end(self) -> None:
        self._take(NONCE_BYTES)
        self.end()

    def end(self) -> None:
        if self._at != len(self._body):
            raise PeerRefused("a message of the handshake is too long")
