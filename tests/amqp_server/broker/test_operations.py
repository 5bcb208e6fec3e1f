import msgspec
import pytest

from amqp_server.broker.access.permissions import Permission, TopicPermission
from amqp_server.broker.access.users import User
from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation, UnreadableOperation, decode, encode
from amqp_server.broker.declared.parameters import ParameterRecord
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord
from amqp_server.broker.declared.vhosts import VhostRecord

BINDING = BindingRecord("/", "x", "q", "queue", "k", b"\0\0\0\0")
ALL: list[Operation] = [
    operations.PutVhost(VhostRecord("v", "text", ("a", "b"), "quorum")),
    operations.DeleteVhost("v"),
    operations.DeclareExchange(ExchangeRecord("/", "x", "topic", False, True, b"\0\0\0\0", False, "n1", 7)),
    operations.DeleteExchange("/", "x", True),
    operations.Bind(BINDING),
    operations.Unbind(BINDING),
    operations.DeclareQueue(
        QueueRecord(
            "/",
            "q",
            0,
            True,
            b"\0\0\0\0",
            durable=False,
            exclusive=True,
            owner=9,
            node="n1",
            incarnation=3,
            members=("n1", "n2"),
            leader="n2",
        )
    ),
    operations.DeleteQueue("/", "q", 12),
    operations.SetMembers("/", "q", 12, ("n1", "n3"), "n3"),
    operations.PutUser(User("ann", "hash", ("administrator",))),
    operations.DeleteUser("ann"),
    operations.SetPermission(Permission("ann", "/", ".*", "", "^a")),
    operations.ClearPermission("ann", "/"),
    operations.NodeDown("n2", 5),
    operations.PutParameter(ParameterRecord("/", "policy", "p", '{"a":1}')),
    operations.ClearParameter("/", "policy", "p"),
    operations.SetTopicPermission(TopicPermission("ann", "/", "x", "^a", ".*")),
    operations.ClearTopicPermission("ann", "/", "x"),
    operations.ReplaceHash("ann", "old", "new"),
    operations.PauseQueue("/", "q", 12, None, True),
    operations.ProtectQueue("/", "q", 12, True),
    operations.DeclareSuperStream(
        ExchangeRecord("/", "s", "x-super-stream", False, False, b"\0\0\0\0"),
        1,
        (QueueRecord("/", "s-1", 0, False, b"\0\0\0\0", type="stream"),),
    ),
]


@pytest.mark.parametrize("operation", ALL, ids=lambda operation: type(operation).__name__)
def test_what_is_encoded_is_decoded_to_the_same(operation: Operation) -> None:
    assert decode(encode(operation)) == operation
    assert decode(memoryview(encode(operation))) == operation


def test_all_operations_are_here() -> None:
    kinds = {type(operation) for operation in ALL}
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert len(set(tags)) == len(tags) == len(operations.Operation.__args__)


@pytest.mark.parametrize(
    "data", [b"", b"\x02" + encode(ALL[0])[1:], b"\x01", b"\x01\x91\x63", encode(ALL[0])[:-1], b"\x01\xff"]
)
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableOperation):
        decode(data)


def test_a_snapshot_is_not_an_operation() -> None:
    with pytest.raises(UnreadableOperation):
        decode(b"\x01" + msgspec.msgpack.encode([1, [], []]))


def test_a_tag_that_was_given_stays() -> None:
    """Logs have these tags, and nodes of other versions send them."""
    tags = {type(each).__name__: each.__struct_config__.tag for each in ALL}
    assert tags == {
        "PutVhost": 1, "DeleteVhost": 2, "DeclareExchange": 3, "DeleteExchange": 4, "Bind": 5, "Unbind": 6, "DeclareQueue": 7,
        "DeleteQueue": 8, "SetMembers": 9, "PutUser": 10, "DeleteUser": 11, "SetPermission": 12, "ClearPermission": 13,
        "NodeDown": 14, "DeclareSuperStream": 15, "PutParameter": 16, "ClearParameter": 17, "SetTopicPermission": 18,
        "ClearTopicPermission": 19, "ReplaceHash": 20, "PauseQueue": 21, "ProtectQueue": 22,
    }  # fmt: skip
