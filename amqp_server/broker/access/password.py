"""Password hashes: made with Argon2id; hashes from RabbitMQ are supported, too, for imported users."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argon2 import PasswordHasher

# 12 MiB and three passes, one of OWASP's equivalent settings for Argon2id: 18 ms on one core here. A login
# must stay below 40 ms, and each login in progress takes this memory.
ARGON2_PASSES = 3
ARGON2_KIB = 12_288
ARGON2_LANES = 1

#: The minimum cost of a hash, which takes almost no time.
CHEAP_PASSES = 1
CHEAP_KIB = 8

#: Maximum length of a password: a whole login must fit into a frame of the handshake anyway.
PASSWORD_BYTES_MAX = 1_024

# RabbitMQ's hash is a salt of four octets and the digest of salt and password.
RABBITMQ_SALT_BYTES = 4
RABBITMQ_ALGORITHMS = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
#: Name in definitions of the algorithm of mqd's hashes, which RabbitMQ cannot read.
OWN_ALGORITHM = "argon2id"
OWN_MARK = "$argon2id$"


class InvalidPasswordHash(ValueError):
    """A hash from another system that cannot be read."""


@cache
def _hasher() -> PasswordHasher:
    # Imported when the first password is hashed: the import would take 20 ms of the start.
    from argon2 import PasswordHasher

    passes, kib = _cost
    return PasswordHasher(passes, kib, ARGON2_LANES)


_cost = ARGON2_PASSES, ARGON2_KIB
_like_rabbitmq = False


def hash_cheaply() -> None:
    """Make hashes cheap. Called before the first hash is made, only in brokers for tests, whose passwords are
    no secret.
    """
    global _cost
    _cost = CHEAP_PASSES, CHEAP_KIB


def hash_like_rabbitmq() -> None:
    """Make hashes that RabbitMQ can read, and keep those that it has made. Called at the start, if at all."""
    global _like_rabbitmq
    _like_rabbitmq = True


def hash_password(password: str) -> str:
    """Return the hash of a password. Slow on purpose."""
    own = _hasher().hash(password)
    if not _like_rabbitmq:
        return own
    salt = os.urandom(RABBITMQ_SALT_BYTES)
    return f"sha256${base64.b64encode(salt + _new('sha256', salt + password.encode()).digest()).decode()}"


def from_rabbitmq(algorithm: str, encoded: str) -> str:
    """Convert a `password_hash` from the definitions or management API of RabbitMQ or mqd. Raises
    InvalidPasswordHash.
    """
    if algorithm == OWN_ALGORITHM:
        return _own(encoded)
    digest = RABBITMQ_ALGORITHMS.get(algorithm)
    if digest is None:
        raise InvalidPasswordHash(f"hashing algorithm {algorithm} is not supported")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidPasswordHash("password_hash is not base64") from None
    if len(raw) != RABBITMQ_SALT_BYTES + _new(digest).digest_size:
        raise InvalidPasswordHash("password_hash has the wrong length")
    return f"{digest}${encoded}"


def algorithm_of(encoded: str) -> str:
    """Return the algorithm of a `password_hash` that comes without one: that of RabbitMQ, SHA-256, unless the
    length is another one's. Hashes of rabbitmqadmin come so.
    """
    if encoded.startswith(OWN_MARK):
        return OWN_ALGORITHM
    for algorithm, digest in RABBITMQ_ALGORITHMS.items():
        if len(encoded) == 4 * -(-(RABBITMQ_SALT_BYTES + _new(digest).digest_size) // 3):
            return algorithm
    return "rabbit_password_hashing_sha256"


def _own(encoded: str) -> str:
    from argon2 import extract_parameters
    from argon2.exceptions import InvalidHashError

    try:
        told = extract_parameters(encoded)
    except InvalidHashError:
        raise InvalidPasswordHash("password_hash is not an Argon2 hash") from None
    if not encoded.startswith(OWN_MARK) or told.memory_cost > ARGON2_KIB or told.time_cost > ARGON2_PASSES:
        # Each login would compute this hash here.
        raise InvalidPasswordHash("password_hash needs more time or memory than mqd allows")
    return encoded


def to_rabbitmq(encoded: str) -> tuple[str, str]:
    """Return the algorithm and the hash in the form of definitions."""
    digest, _, rest = encoded.partition("$")
    for algorithm, known in RABBITMQ_ALGORITHMS.items():
        if digest == known:
            return algorithm, rest
    return (OWN_ALGORITHM if encoded else "rabbit_password_hashing_sha256"), encoded


def _new(digest: str, content: bytes = b"") -> hashlib._Hash:
    # MD5 is weak, but old users from RabbitMQ have it until their next login.
    return hashlib.new(digest, content, usedforsecurity=False)


def verify(encoded: str, password: str) -> bool:
    """Check a password: slow on purpose, and equally slow for every kind of hash. Nothing matches an empty
    hash.
    """
    return checked(encoded, password)[0]


def checked(encoded: str, password: str) -> tuple[bool, str]:
    """Return whether the password is right, and an mqd hash of it if the current hash is from RabbitMQ."""
    digest, _, rest = encoded.partition("$")
    own = ""
    if not encoded or digest in RABBITMQ_ALGORITHMS.values():
        # Compute an Argon2 hash in any case: the time must not show which users exist, or which of them came
        # from RabbitMQ.
        own = _hasher().hash(password)
    if not encoded:
        return False, ""
    if digest in RABBITMQ_ALGORITHMS.values():
        raw = base64.b64decode(rest)
        salt, expected = raw[:RABBITMQ_SALT_BYTES], raw[RABBITMQ_SALT_BYTES:]
        same = hmac.compare_digest(_new(digest, salt + password.encode()).digest(), expected)
        return same, own if same and not _like_rabbitmq else ""
    return _verify_own(encoded, password), ""


def _verify_own(encoded: str, password: str) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

    try:
        return _hasher().verify(encoded, password)
    except VerifyMismatchError:
        return False
    except (VerificationError, InvalidHashError):
        # The hash is damaged.
        hash_password(password)
        return False
