import time
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.broker.access.permissions import Access, InvalidPermission, Permissions
from amqp_server.broker.metadata import Metadata
from amqp_server.errors import AccessRefused, NotAllowed

ACCESSES: tuple[Access, ...] = get_args(Access)


@pytest.fixture
def permissions(metadata: Metadata) -> Permissions:
    return Permissions(metadata)


def test_a_nul_is_a_character_like_others(permissions: Permissions) -> None:
    """Names may have one; RE2 and `regex` must not take it for the end of a pattern or of a name."""
    permissions.set("ann", "/", "^a\0b$", "^a$", "^(?!a\0)a")
    allowed = {(name, access) for name in ("a", "a\0b", "a\0c", "ab") for access in ACCESSES
               if permissions.allows("ann", "/", name, access)}  # fmt: skip
    assert allowed == {("a\0b", "configure"), ("a", "write"), ("a", "read"), ("ab", "read")}


def test_new_user_may_nothing(permissions: Permissions) -> None:
    assert not permissions.may_open("ann", "/")
    assert not any(permissions.allows("ann", "/", "q", access) for access in ACCESSES)


def test_each_pattern_is_for_its_access(permissions: Permissions) -> None:
    permissions.set("ann", "/", "^c-", "^w-", "^r-")
    allowed = {
        (name, access) for name in ("c-q", "w-q", "r-q") for access in ACCESSES
        if permissions.allows("ann", "/", name, access)
    }  # fmt: skip
    assert allowed == {("c-q", "configure"), ("w-q", "write"), ("r-q", "read")}


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("", "q", False),
        ("", "", True),
        ("^$", "q", False),
        ("^$", "", True),
        (".*", "q", True),
        (".*", "", True),
        ("q", "my-queue", True),
        ("^q", "my-queue", False),
        ("q$", "q\n", True),
        ("^(?!secret).*", "secret-1", False),
        ("^(?!secret).*", "open-1", True),
        ("^[[:alpha:]]+$", "abc", True),
        ("^[[:alpha:]]+$", "abc1", False),
        (r"^\w+$", "ä", False),
        ("^amq\\.", "amq.topic", True),
        ("^amq\\.", "amqXtopic", False),
    ],
)
def test_patterns_are_read_as_rabbitmq_reads_them(
    permissions: Permissions, pattern: str, name: str, matches: bool
) -> None:
    permissions.set("ann", "/", pattern, "", "")
    assert permissions.allows("ann", "/", name, "configure") is matches


def test_texts_of_refusals(permissions: Permissions) -> None:
    permissions.set("ann", "/", "^$", "^$", "^$")
    with pytest.raises(AccessRefused) as queue:
        permissions.check("ann", "/", "queue", "q", "configure")
    assert (
        queue.value.reply_text()
        == "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'ann'"
    )
    with pytest.raises(AccessRefused) as exchange:
        permissions.check("ann", "/", "exchange", "", "write")
    assert exchange.value.text == "write access to exchange 'amq.default' in vhost '/' refused for user 'ann'"
    permissions.store_topic(permissions.prepare_topic("ann", "/", "amq.topic", "^$", "^$"))
    with pytest.raises(AccessRefused) as topic:
        permissions.check_topic("ann", "/", "amq.topic", "k", "read")
    assert (
        topic.value.text
        == "read access to topic 'k' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
    )
    with pytest.raises(NotAllowed) as vhost:
        permissions.check_open("ann", "v")
    assert vhost.value.reply_text() == "NOT_ALLOWED - access to vhost 'v' refused for user 'ann'"
    permissions.check_open("ann", "/")


def test_default_exchange_has_a_name_in_patterns(permissions: Permissions) -> None:
    permissions.set("ann", "/", "", "^amq\\.default$", "")
    permissions.check("ann", "/", "exchange", "", "write")
    permissions.set("ann", "/", "", "^$", "")
    with pytest.raises(AccessRefused):
        permissions.check("ann", "/", "exchange", "", "write")


def test_change_counts_at_once_and_is_told(metadata: Metadata) -> None:
    changes: list[None] = []
    permissions = Permissions(metadata, changed=lambda: changes.append(None))
    permissions.set("ann", "/", ".*", ".*", ".*")
    assert permissions.allows("ann", "/", "q", "write")
    permissions.set("ann", "/", ".*", "^other$", ".*")
    assert not permissions.allows("ann", "/", "q", "write")
    permissions.clear("ann", "/")
    assert not permissions.may_open("ann", "/")
    assert len(changes) == 3
    permissions.clear("ann", "/")
    assert len(changes) == 3


def test_permissions_survive_a_restart(metadata: Metadata) -> None:
    long = "v" * 255
    permissions = Permissions(metadata)
    permissions.set("ann", "/", "c", "w", "r")
    permissions.set("ann", long, "", "", ".*")
    permissions.set("bob", "/", "", "", "")
    permissions.clear("bob", "/")
    again = Permissions(metadata)
    assert again.all() == permissions.all()
    assert [permission.vhost for permission in again.of_user("ann")] == ["/", long]
    assert again.of_vhost("nowhere") == []


def test_deleted_users_and_vhosts_leave_nothing(metadata: Metadata) -> None:
    permissions = Permissions(metadata)
    for user in ("ann", "bob"):
        for vhost in ("/", "v"):
            permissions.set(user, vhost, ".*", ".*", ".*")
    permissions.clear_user("ann")
    permissions.clear_vhost("v")
    assert [(left.user, left.vhost) for left in Permissions(metadata).all()] == [("bob", "/")]


def test_names_are_not_confused_by_their_border(metadata: Metadata) -> None:
    permissions = Permissions(metadata)
    permissions.set("ab", "c", ".*", "", "")
    permissions.set("a", "bc", "", ".*", "")
    assert len(Permissions(metadata).all()) == 2


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{3,2}", "x" * 5000])
def test_invalid_pattern_is_refused_and_changes_nothing(metadata: Metadata, pattern: str) -> None:
    permissions = Permissions(metadata)
    permissions.set("ann", "/", "c", "w", "r")
    with pytest.raises(InvalidPermission, match="read: regular expression"):
        permissions.set("ann", "/", "", "", pattern)
    assert Permissions(metadata).all() == permissions.all()
    assert permissions.allows("ann", "/", "w", "write")


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(a+)+$", "(a*)*b", "(.*a){25}"])
def test_catastrophic_pattern_ends_in_time_with_a_refusal(metadata: Metadata, pattern: str) -> None:
    permissions = Permissions(metadata, match_ms=50)
    permissions.set("ann", "/", pattern, "", "")
    started = time.process_time()
    assert not permissions.allows("ann", "/", "a" * 24 + "c" * 231, "configure")
    assert not permissions.allows("ann", "/", "a" * 254 + "!", "configure") or pattern == "(.*a){25}"
    assert time.process_time() - started < 5  # a tenth of a second, or years


def test_answers_are_bounded(metadata: Metadata) -> None:
    permissions = Permissions(metadata, answers_max=10)
    permissions.set("ann", "/", "^q[0-9]*$", "", "")
    assert all(permissions.allows("ann", "/", f"q{number}", "configure") for number in range(100))
    assert len(permissions._answers) <= 10


@given(name=st.text(max_size=30))
def test_remembered_answer_is_the_first_answer(name: str) -> None:
    class Nothing:
        def put(self, table: str, key: str, value: bytes) -> None: ...
        def delete(self, table: str, key: str) -> None: ...
        def items(self, table: str) -> list[tuple[str, bytes]]:
            return []

    permissions = Permissions(Nothing())
    permissions.set("ann", "/", "^[a-f]*$", "", "")
    expected = all(letter in "abcdef" for letter in name.removesuffix("\n"))
    assert permissions.allows("ann", "/", name, "configure") is expected
    assert permissions.allows("ann", "/", name, "configure") is expected


def test_a_backtracking_pattern_is_given_up(metadata: Metadata, caplog: pytest.LogCaptureFixture) -> None:
    """Each name may take some time; the whole pattern may not."""
    permissions = Permissions(metadata, match_ms=5, match_total_ms=20)
    permissions.set("ann", "/", "^(?!x)(a|aa)+$", "", "")
    assert permissions.allows("ann", "/", "aaa", "configure")
    started = time.process_time()
    for number in range(1_000):
        assert not permissions.allows("ann", "/", "a" * 200 + f"{number}", "configure")
    assert time.process_time() - started < 2  # 20 ms and a little, or 5 s
    assert not permissions.allows("ann", "/", "a", "configure")
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "pattern '^(?!x)(a|aa)+$' often takes too long"
    ]
    permissions.set("ann", "/", "^(?!x)a+$", "", "")
    assert permissions.allows("ann", "/", "a", "configure")
