"""The permissions that each operation needs: configure, write, read, each alone and each missing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

import pamqp.base
import pytest
from pamqp import commands

from conformance_tests.broker import Broker, CtlError
from conformance_tests.conftest import Ctl, Raw
from conformance_tests.wire import RawClient

PERMISSIONS = ("configure", "write", "read")


class Stage:
    """A user, and the queues and exchanges of a test.

    The patterns of the user are set once: what it may do with a resource is written at the end of the
    resource's name, `C` for configure, `W` for write, `R` for read.
    """

    def __init__(self, broker: Broker) -> None:
        self.prefix = self.user = f"perm-{uuid4().hex[:8]}"
        self.owner = RawClient(broker.url).handshake().open_channel()
        self.declared: set[tuple[str, str]] = set()

    def name(self, which: str, permissions: Iterable[str]) -> str:
        return f"{self.prefix}-{which}-{''.join(each[0].upper() for each in permissions)}"

    def declare(self, kind: str, name: str) -> str:
        self.declared.add((kind, name))
        if kind == "queue":
            self.owner.call(commands.Queue.Declare(queue=name), commands.Queue.DeclareOk)
        else:
            method = commands.Exchange.Declare(exchange=name, exchange_type="fanout")
            self.owner.call(method, commands.Exchange.DeclareOk)
        return name

    def close(self) -> None:
        for kind, name in self.declared:
            if kind == "queue":
                self.owner.call(commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
            else:
                self.owner.call(commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk)
        self.owner.close()


@pytest.fixture(scope="module")
def stage(broker: Broker) -> Iterator[Stage]:
    if not broker.has_ctl:
        pytest.skip("needs a control command (--ctl) for the broker behind --amqp-url")
    stage = Stage(broker)
    broker.ctl("add_user", stage.user, stage.user)
    patterns = [f"^{stage.prefix}-.*-[CWR]*{letter}[CWR]*$" for letter in "CWR"]
    broker.ctl("set_permissions", "-p", "/", stage.user, *patterns)
    yield stage
    stage.close()
    with suppress(CtlError):
        broker.ctl("delete_user", stage.user)


@pytest.fixture
def user(stage: Stage, raw: Raw) -> RawClient:
    return raw(user=stage.user, password=stage.user)


Names = dict[str, str]
KINDS = {"queue": "queue", "exchange": "exchange", "other": "exchange"}


class Operation(NamedTuple):
    """`make` gives the method from the names; `needs` lists (permission, kind of resource, which one)."""

    make: Callable[[Names], pamqp.base.Frame]
    answer: type[pamqp.base.Frame]
    needs: tuple[tuple[str, str, str], ...]


OPERATIONS: dict[str, Operation] = {
    "exchange.declare": Operation(
        lambda n: commands.Exchange.Declare(exchange=n["exchange"], exchange_type="fanout"),
        commands.Exchange.DeclareOk,
        (("configure", "exchange", "exchange"),),
    ),
    "exchange.declare with an alternate exchange": Operation(
        lambda n: commands.Exchange.Declare(
            exchange=n["new"],
            exchange_type="fanout",
            auto_delete=True,
            arguments={"alternate-exchange": n["other"]},
        ),
        commands.Exchange.DeclareOk,
        (("configure", "exchange", "new"), ("read", "exchange", "new"), ("write", "exchange", "other")),
    ),
    "exchange.delete": Operation(
        lambda n: commands.Exchange.Delete(exchange=n["new"]),
        commands.Exchange.DeleteOk,
        (("configure", "exchange", "new"),),
    ),
    "exchange.bind": Operation(
        lambda n: commands.Exchange.Bind(destination=n["other"], source=n["exchange"], routing_key="k"),
        commands.Exchange.BindOk,
        (("write", "exchange", "other"), ("read", "exchange", "exchange")),
    ),
    "exchange.unbind": Operation(
        lambda n: commands.Exchange.Unbind(destination=n["other"], source=n["exchange"], routing_key="k"),
        commands.Exchange.UnbindOk,
        (("write", "exchange", "other"), ("read", "exchange", "exchange")),
    ),
    "queue.declare": Operation(
        lambda n: commands.Queue.Declare(queue=n["queue"]),
        commands.Queue.DeclareOk,
        (("configure", "queue", "queue"),),
    ),
    "queue.declare with a dead-letter exchange": Operation(
        lambda n: commands.Queue.Declare(
            queue=n["new"], auto_delete=True, exclusive=True, arguments={"x-dead-letter-exchange": n["other"]}
        ),
        commands.Queue.DeclareOk,
        (("configure", "queue", "new"), ("read", "queue", "new"), ("write", "exchange", "other")),
    ),
    "queue.bind": Operation(
        lambda n: commands.Queue.Bind(queue=n["queue"], exchange=n["exchange"], routing_key="k"),
        commands.Queue.BindOk,
        (("write", "queue", "queue"), ("read", "exchange", "exchange")),
    ),
    "queue.unbind": Operation(
        lambda n: commands.Queue.Unbind(queue=n["queue"], exchange=n["exchange"], routing_key="k"),
        commands.Queue.UnbindOk,
        (("write", "queue", "queue"), ("read", "exchange", "exchange")),
    ),
    "queue.purge": Operation(
        lambda n: commands.Queue.Purge(queue=n["queue"]),
        commands.Queue.PurgeOk,
        (("read", "queue", "queue"),),
    ),
    "queue.delete": Operation(
        lambda n: commands.Queue.Delete(queue=n["new"]),
        commands.Queue.DeleteOk,
        (("configure", "queue", "new"),),
    ),
    "basic.consume": Operation(
        lambda n: commands.Basic.Consume(queue=n["queue"]),
        commands.Basic.ConsumeOk,
        (("read", "queue", "queue"),),
    ),
    "basic.get": Operation(
        lambda n: commands.Basic.Get(queue=n["queue"]), commands.Basic.GetEmpty, (("read", "queue", "queue"),)
    ),
    "queue.declare passive": Operation(
        lambda n: commands.Queue.Declare(queue=n["queue"], passive=True), commands.Queue.DeclareOk, ()
    ),
    "exchange.declare passive": Operation(
        lambda n: commands.Exchange.Declare(exchange=n["exchange"], passive=True),
        commands.Exchange.DeclareOk,
        (),
    ),
    "basic.qos": Operation(lambda n: commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk, ()),
    "tx.select": Operation(lambda n: commands.Tx.Select(), commands.Tx.SelectOk, ()),
    "confirm.select": Operation(lambda n: commands.Confirm.Select(), commands.Confirm.SelectOk, ()),
}


def names_of(stage: Stage, operation: Operation, missing: int | None = None) -> Names:
    """Names for all objects of the operation, declared except `new`.

    If no permission is missing, each has exactly the permissions that it needs; otherwise each has all except
    the missing one.
    """
    names = {}
    for which in ("queue", "exchange", "other", "new"):
        needed = [permission for permission, _, each in operation.needs if each == which]
        if missing is not None:
            permission, _, other = operation.needs[missing]
            needed = [each for each in PERMISSIONS if (each, which) != (permission, other)]
        names[which] = stage.name(which, needed)
        if which != "new":
            stage.declare(KINDS[which], names[which])
    return names


@pytest.mark.parametrize("label", OPERATIONS)
def test_operation_with_just_what_it_needs(stage: Stage, user: RawClient, label: str) -> None:
    operation = OPERATIONS[label]
    user.call(operation.make(names_of(stage, operation)), operation.answer)


@pytest.mark.parametrize(
    ("label", "missing"),
    [(label, i) for label, operation in OPERATIONS.items() for i in range(len(operation.needs))],
)
def test_operation_without_one_of_its_permissions(
    stage: Stage, user: RawClient, label: str, missing: int
) -> None:
    operation = OPERATIONS[label]
    names = names_of(stage, operation, missing)
    permission, kind, which = operation.needs[missing]
    method = operation.make(names)
    user.send_method(method)
    user.expect_channel_close(
        403,
        rf"^ACCESS_REFUSED - ({permission} )?access to {kind} '{names[which]}' in vhost '/' refused for user '{stage.user}'$",
        method_id=divmod(method.index, 1 << 16),
    )


def expect_refused(client: RawClient, stage: Stage, exchange: str) -> None:
    client.expect_channel_close(
        403,
        rf"^ACCESS_REFUSED - (write )?access to exchange '{exchange}' in vhost '/' refused for user '{stage.user}'$",
        method_id=(60, 40),
    )


def test_publish_needs_write(stage: Stage, user: RawClient) -> None:
    exchange = stage.declare("exchange", stage.name("x", ("configure", "read")))
    user.publish(b"x", exchange=exchange)
    expect_refused(user, stage, exchange)


def test_publish_with_write(stage: Stage, user: RawClient) -> None:
    exchange = stage.declare("exchange", stage.name("x", ("write",)))
    user.publish(b"x", exchange=exchange, mandatory=True)
    assert user.read(commands.Basic.Return).reply_code == 312


def test_default_exchange_is_called_amq_default(stage: Stage, user: RawClient) -> None:
    """The permission on the queue does not matter, the one on the exchange does."""
    queue = stage.declare("queue", stage.name("q", PERMISSIONS))
    user.publish(b"x", routing_key=queue)
    expect_refused(user, stage, "amq.default")


def test_permissions_come_before_existence(user: RawClient) -> None:
    """A user without the permission to read can't find out which queues exist."""
    for method in (
        commands.Basic.Get(queue="nothing-of-this-name"),
        commands.Queue.Purge(queue="nothing-of-this-name"),
        commands.Queue.Delete(queue="nothing-of-this-name"),
        commands.Exchange.Delete(exchange="nothing-of-this-name"),
    ):
        user.send_method(method)
        user.expect_channel_close(
            403, r"^ACCESS_REFUSED - (read |configure )?access to (queue|exchange) 'nothing-of-this-name'"
        )
        user.open_channel()


def test_server_named_queue_needs_its_generated_name(user: RawClient) -> None:
    user.send_method(commands.Queue.Declare(exclusive=True))
    user.expect_channel_close(
        403, r"^ACCESS_REFUSED - (configure )?access to queue 'amq\.gen-.*' in vhost '/' refused"
    )


def test_pattern_in_a_users_life(raw: Raw, ctl: Ctl, stage: Stage) -> None:
    """Patterns may match anywhere in a name; the empty one allows nothing; a change applies to the next
    operations.
    """
    user = f"{stage.user}-2"
    queue = stage.declare("queue", f"{stage.prefix}-middle-q")
    ctl("add_user", user, user)
    try:
        ctl("set_permissions", user, r"^amq\.gen", r"^amq\.default$", "middle")
        client = raw(user=user, password=user)
        client.call(commands.Queue.Declare(exclusive=True), commands.Queue.DeclareOk)
        client.publish(b"x", routing_key="nowhere", mandatory=True)
        client.read_content(commands.Basic.Return)
        client.call(commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)

        ctl("set_user_tags", user, "administrator")  # which give no permission
        ctl("set_permissions", user, "", "", "^middle")
        for old_or_new in (client, raw(user=user, password=user)):
            old_or_new.open_channel(2)
            for method in (commands.Queue.Purge(queue=queue), commands.Queue.Declare(queue=f"{queue}-new")):
                old_or_new.send_method(method, 2)
                old_or_new.expect_channel_close(
                    403, "^ACCESS_REFUSED - (read |configure )?access to queue", 2
                )
                old_or_new.open_channel(2)
    finally:
        ctl("delete_user", user)


def test_user_id_of_somebody_else_from_an_impersonator(stage: Stage, raw: Raw, ctl: Ctl) -> None:
    exchange = stage.declare("exchange", stage.name("x", ("write",)))
    ctl("set_user_tags", stage.user, "impersonator")
    try:
        client = raw(user=stage.user, password=stage.user)
        client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        client.publish(b"x", exchange=exchange, properties=commands.Basic.Properties(user_id="guest"))
        client.read(commands.Basic.Ack)
    finally:
        ctl("set_user_tags", stage.user)


@pytest.mark.parametrize("claimed", ["guest", "nobody"])
def test_user_id_of_somebody_else(stage: Stage, user: RawClient, claimed: str) -> None:
    exchange = stage.declare("exchange", stage.name("x", ("write",)))
    user.publish(b"x", exchange=exchange, properties=commands.Basic.Properties(user_id=claimed))
    user.expect_channel_close(
        406,
        rf"^PRECONDITION_FAILED - user_id property set to '{claimed}' but authenticated user was '{stage.user}'$",
        method_id=(60, 40),
    )
