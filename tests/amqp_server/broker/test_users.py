import base64
import hashlib
import time

import pytest

from amqp_server.broker.access import password as passwords
from amqp_server.broker.access.password_cache import Logins
from amqp_server.broker.access.users import NoSuchUser, User, UserRefused, Users, is_loopback
from amqp_server.broker.metadata import Metadata, UnreadableRecord


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_password_is_checked(metadata: Metadata) -> None:
    users = Users(metadata)
    users.add("ann", "secret", ["management"])
    assert users.verify("ann", "secret")
    assert not users.verify("ann", "Secret")
    assert not users.verify("bob", "secret")


def test_users_survive_a_restart(metadata: Metadata) -> None:
    users = Users(metadata)
    users.add("ann", "secret", ["management", "policymaker"])
    users.add("bob", "secret")
    users.delete("bob")
    again = Users(metadata)
    assert [user.name for user in again] == ["ann"]
    assert again.require("ann").tags == ("management", "policymaker")
    assert again.verify("ann", "secret")


def test_record_of_another_version_is_refused(metadata: Metadata) -> None:
    metadata.put("users", "ann", b"\x07{}")
    with pytest.raises(UnreadableRecord, match="record 'ann' of users"):
        Users(metadata)


def test_blank_passwords_let_nobody_in(metadata: Metadata) -> None:
    users = Users(metadata)
    with pytest.raises(UserRefused, match="blank password"):
        users.add("ann", "")
    users.put("bob", "")
    assert not users.verify("bob", "")
    assert not users.verify("bob", "x")
    assert users.recall("bob", "") is False


def test_overlong_password_is_refused_without_work(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = Users(metadata)
    users.add("ann", "secret")

    def must_not_run(encoded: str, password: str) -> bool:
        raise AssertionError

    monkeypatch.setattr(passwords, "checked", must_not_run)
    assert not users.verify("ann", "x" * 1025)


def test_changed_password_counts_at_once(metadata: Metadata) -> None:
    users = Users(metadata)
    users.add("ann", "old")
    assert users.verify("ann", "old")
    users.put("ann", passwords.hash_password("new"))
    assert users.recall("ann", "old") is None
    assert not users.verify("ann", "old")
    assert users.verify("ann", "new")


def test_second_check_is_remembered_and_then_forgotten(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    users = Users(metadata, login_memory_s=30, now=clock)
    users.add("ann", "secret")
    checks: list[str] = []
    real = passwords.checked

    def counted(encoded: str, password: str) -> tuple[bool, str]:
        checks.append(password)
        return real(encoded, password)

    monkeypatch.setattr(passwords, "checked", counted)
    assert users.recall("ann", "secret") is None
    assert users.verify("ann", "secret") and users.verify("ann", "secret")
    assert not users.verify("ann", "wrong") and not users.verify("ann", "wrong")
    assert users.recall("ann", "secret") is True
    assert users.recall("ann", "wrong") is False
    assert checks == ["secret", "wrong"]
    clock.now_s += 31
    assert users.recall("ann", "secret") is None
    assert users.verify("ann", "secret")
    assert checks == ["secret", "wrong", "secret"]


@pytest.mark.pure
def test_memory_of_logins_is_bounded_and_holds_no_password() -> None:
    logins = Logins(60, 3, Clock())
    for number in range(10):
        logins.remember("ann", "hash", f"canary-{number}", True)
    kept = [logins.recall("ann", "hash", f"canary-{number}") for number in range(10)]
    assert kept == [None] * 7 + [True] * 3
    assert "canary" not in repr(vars(logins))


def test_name_and_password_are_not_confused_by_their_border() -> None:
    logins = Logins(60, 10, Clock())
    logins.remember("", "ab", "c", True)
    assert logins.recall("", "a", "bc") is None
    assert logins.recall("a", "b", "c") is None


def test_guesses_do_not_push_out_passwords_that_were_right() -> None:
    logins = Logins(60, 3, Clock())
    logins.remember("ann", "hash", "right", True)
    for number in range(10):
        logins.remember("ann", "hash", f"guess-{number}", False)
    assert logins.recall("ann", "hash", "right") is True


def test_hash_is_shown_nowhere(metadata: Metadata) -> None:
    user = Users(metadata).add("ann", "secret")
    assert user.password_hash not in repr(user)
    assert user.password_hash.startswith("$argon2id$")


def test_a_hash_costs_what_is_said() -> None:
    """12 MiB and three passes: some 25 ms of a core for a login, and as much for each guess of a thief."""
    assert passwords.hash_password("secret").startswith("$argon2id$v=19$m=12288,t=3,p=1$")


def test_every_refusal_costs_the_same(metadata: Metadata) -> None:
    """For an unknown user, for one who came from RabbitMQ, and for one who has no password."""
    users = Users(metadata, login_memory_s=0)
    users.add("ann", "secret")
    users.put("imported", from_rabbitmq("secret"))
    users.put("damaged", "$argon2id$damaged")
    users.put("locked", "")
    took_s: dict[str, list[float]] = {"ann": [], "nobody": [], "imported": [], "damaged": [], "locked": []}
    for _ in range(5):
        for name, times in took_s.items():
            started = time.thread_time()
            assert not users.verify(name, "wrong")
            times.append(time.thread_time() - started)
    least = {name: min(times) for name, times in took_s.items()}
    assert all(0.5 * least["ann"] < each < 2 * least["ann"] for each in least.values()), least


def test_refusals_are_remembered_whoever_is_refused(metadata: Metadata) -> None:
    """If only known users were remembered, a slow second refusal would reveal that there is no such user."""
    clock = Clock()
    users = Users(metadata, login_memory_s=30, now=clock)
    users.add("ann", "secret")
    users.put("imported", from_rabbitmq("secret"))
    users.put("locked", "")
    for name in ("ann", "nobody", "imported", "locked"):
        assert users.recall(name, "wrong") is None
        assert not users.verify(name, "wrong")
        assert users.recall(name, "wrong") is False
        assert users.recall(name, "x" * 1025) is False
    assert users.recall("nobody else", "wrong") is None
    clock.now_s += 31
    assert users.recall("nobody", "wrong") is None
    users.add("nobody", "wrong")
    assert users.verify("nobody", "wrong")


def from_rabbitmq(password: str) -> str:
    salt = b"\x90\x8d\xc6\x0a"
    encoded = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    return passwords.from_rabbitmq("rabbit_password_hashing_sha256", encoded)


@pytest.mark.parametrize("digest", ["sha256", "sha512"])
def test_hashes_of_rabbitmq(metadata: Metadata, digest: str) -> None:
    salt = b"\x90\x8d\xc6\x0a"
    encoded = base64.b64encode(salt + hashlib.new(digest, salt + b"test12").digest()).decode()
    users = Users(metadata)
    users.put("ann", passwords.from_rabbitmq(f"rabbit_password_hashing_{digest}", encoded))
    assert users.verify("ann", "test12")
    assert not users.verify("ann", "test13")


def test_hash_published_in_rabbitmqs_documentation() -> None:
    # "test12" under the salt 908DC60A, the worked example of RabbitMQ's page on passwords.
    encoded = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    assert passwords.verify(passwords.from_rabbitmq("rabbit_password_hashing_sha256", encoded), "test12")


@pytest.mark.parametrize(
    ("algorithm", "encoded"),
    [
        ("rabbit_password_hashing_md5", ""),
        ("rabbit_password_hashing_sha256", "?"),
        ("rabbit_password_hashing_sha256", "AAAA"),
    ],
)
def test_unreadable_hashes_are_refused(algorithm: str, encoded: str) -> None:
    with pytest.raises(passwords.InvalidPasswordHash):
        passwords.from_rabbitmq(algorithm, encoded)


def test_damaged_hash_lets_nobody_in(metadata: Metadata) -> None:
    users = Users(metadata)
    users.put("ann", "$argon2id$damaged")
    assert not users.verify("ann", "secret")


def test_users_that_cannot_be_are_refused(metadata: Metadata) -> None:
    users = Users(metadata, users_max=1)
    users.add("ann", "secret")
    with pytest.raises(UserRefused, match="already exists"):
        users.add("ann", "secret")
    with pytest.raises(UserRefused, match="users_max"):
        users.put("bob", "")
    with pytest.raises(NoSuchUser, match='User "bob" does not exist'):
        users.require("bob")
    for name in ("", "x" * 256, "two\nlines"):
        with pytest.raises(UserRefused, match="name"):
            users.put(name, "")
    with pytest.raises(UserRefused, match="tags"):
        users.put("ann", "", [str(number) for number in range(65)])
    assert users.require("ann") == User("ann", users.require("ann").password_hash, ())


@pytest.mark.parametrize(
    ("peer", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("::", False),
        ("0.0.0.0", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_guest_comes_from_loopback_only(metadata: Metadata, peer: str, loopback: bool) -> None:
    users = Users(metadata)
    assert is_loopback(peer) is loopback
    assert users.may_connect_from("guest", peer) is loopback
    assert users.may_connect_from("ann", peer)
    assert Users(metadata, loopback_users=()).may_connect_from("guest", peer)


@pytest.mark.pure
def test_hashes_like_those_of_rabbitmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that users can go back to RabbitMQ by definitions."""
    monkeypatch.setattr(passwords, "_like_rabbitmq", False)
    own = passwords.hash_password("s3cret")
    assert own.startswith("$argon2id$")
    before = passwords.from_rabbitmq("rabbit_password_hashing_md5", base64.b64encode(bytes(20)).decode())
    passwords.hash_like_rabbitmq()
    made = passwords.hash_password("s3cret")
    algorithm, encoded = passwords.to_rabbitmq(made)
    raw = base64.b64decode(encoded)
    assert algorithm == "rabbit_password_hashing_sha256"
    assert raw[4:] == hashlib.sha256(raw[:4] + b"s3cret").digest()
    # A login replaces no hash, neither that of RabbitMQ nor an earlier one of mqd.
    assert passwords.checked(made, "s3cret") == (True, "")
    assert passwords.checked(own, "s3cret") == (True, "")
    assert passwords.checked(before, "s3cret") == (False, "")
    monkeypatch.setattr(passwords, "_like_rabbitmq", False)
    assert passwords.checked(made, "s3cret")[1].startswith("$argon2id$")
