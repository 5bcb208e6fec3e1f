"""basic.qos, consume, cancel, get, ack, nack, reject, recover; confirm, tx and flow of a channel."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from pamqp import commands

from amqp_server.broker import declared_memory, group_members
from amqp_server.broker.declared import argument_checks
from amqp_server.broker.reply import PSEUDO_QUEUE, ReplyHost
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.traffic import Traffic
from amqp_server.channel.confirms import Confirms
from amqp_server.channel.exchange_methods import argument_types, check_owner
from amqp_server.channel.queue_methods import check_home, find, not_served, place_of, resolve_name
from amqp_server.channel.subscription import Getter, Subscription
from amqp_server.channel.transactions.prepared_commit import PreparedCommit
from amqp_server.channel.transactions.tx import NOTHING_DONE, LargeCommit, LargeEnd, Transaction
from amqp_server.errors import (
    AccessRefused,
    NotAllowed,
    NotFound,
    NotImplemented_,
    PreconditionFailed,
    Unavailable,
)
from amqp_server.streams.layout.consumer_start import (
    BATCHES,
    NAMES_FULL,
    TIMESTAMPS,
    parse_batches,
    parse_consumer_start,
    parse_flag,
    parse_wanted,
)
from amqp_server.wire import content, frames, tables
from amqp_server.wire.deliver import LARGE_BYTES, DeliverTemplate
from quorum_queue.host import DELETED
from quorum_queue.machine import versions
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Run
from quorum_queue.ports import EXCLUSIVE, Got, Recipient, Refused

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel

#: Calls back when these hosts have taken their parts of a transaction.
Answered = Callable[["Channel", Transaction, list[Recipient], Callable[..., None]], None]

#: basic.get-ok up to its delivery tag: frame type 1, class 60, method 71.
_GET_OK = (60).to_bytes(2, "big") + (71).to_bytes(2, "big")


def qos(channel: Channel, method: commands.Basic.Qos) -> None:
    if method.prefetch_size:
        raise NotImplemented_(f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.window.change(method.prefetch_count or 0)
    else:
        # As in RabbitMQ this lifts the channel's limit; a client that wants both sets the consumers' limit
        # first.
        channel.window.change(0)
        channel.prefetch = method.prefetch_count or 0
    channel.send(commands.Basic.QosOk())


def consume(channel: Channel, method: commands.Basic.Consume) -> None:
    connection = channel.connection
    tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
    if method.queue == PSEUDO_QUEUE:
        _consume_replies(channel, method, tag)
        return
    if method.queue.startswith(PSEUDO_QUEUE + "."):
        raise NotFound(f"no queue '{method.queue}' in vhost '{channel.vhost.name}'")
    name = resolve_name(channel, method.queue)
    if tag in channel.subscriptions:
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    channel.broker.access.permissions.check(
        connection.client.access, channel.vhost.name, "queue", name, "read"
    )
    _check_count(channel)
    queue = channel.vhost.queues.get(name)
    if queue is None:
        raise NotFound(f"no queue '{name}' in vhost '{channel.vhost.name}'")
    check_home(channel, queue)
    check_owner(channel, queue)
    arguments: dict[str, object] = dict(method.arguments or {})
    channel.broker.counts.check_declared(declared_memory.of_consumer(arguments))
    if queue.type.is_stream:
        _check_stream_consumer(channel, method, queue, arguments)
    elif queue.type.is_group:
        _check_member(method, queue, arguments)
        group_members.check(queue, connection.client.access)
    priority = _consumer_priority(channel, queue.name, arguments)
    for argument in () if queue.type.is_stream else ("x-stream-offset", TIMESTAMPS, BATCHES):
        if argument in arguments:
            raise PreconditionFailed(
                f"invalid arg '{argument}' for queue '{name}' in vhost '{channel.vhost.name}' "
                f"of queue type rabbit_{queue.type.name}_queue"
            )
    if method.exclusive and queue.parsed.single_active_consumer:
        raise in_exclusive_use(channel, queue)
    subscription = Subscription(
        channel,
        tag,
        queue,
        no_ack=bool(method.no_ack),
        exclusive=bool(method.exclusive),
        prefetch=channel.prefetch,
    )
    subscription.arguments = arguments
    if "x-consumer-timeout" in arguments and queue.type.knows_failures:
        subscription.timeout_own_ms = _consumer_timeout(channel, queue.name, arguments)
    timeout_ms = subscription.timeout_ms
    if timeout_ms:
        channel.broker.timeout_noted(timeout_ms)
    if queue.type.is_stream:
        types = argument_types(channel)
        subscription.start = parse_consumer_start(arguments, types, place_of(queue))
        subscription.wanted = parse_wanted(arguments, types, place_of(queue))
        subscription.timed = parse_flag(arguments, types, place_of(queue), TIMESTAMPS)
        subscription.batches = parse_batches(arguments, types, place_of(queue))
    consumer = Consumer(
        subscription.key,
        no_ack=subscription.no_ack,
        prefetch=subscription.prefetch,
        priority=priority,
        exclusive=subscription.exclusive,
        window=channel.window,
        sink=subscription,
    )
    consumer.paused = connection.paused
    # Added before it is attached: if the channel closes meanwhile, it is detached with the others.
    channel.add(subscription)

    def begin(done: Callable[[str | None], None]) -> None:
        def attached(refused: str | None) -> None:
            if refused is None and not channel.closed and not subscription.revoked:
                subscription.attached = True
                connection.consumer_event(channel.number, subscription, created=True)
                if not method.nowait:
                    # Sent here and not after `attach`, because deliveries follow at once.
                    channel.send(commands.Basic.ConsumeOk(tag))
            done(refused)

        queue.host.attach(consumer, attached)

    def attached(refused: str | None) -> None:
        if subscription.revoked:
            # Its permission ended while it was being attached.
            queue.host.submit(("detach", subscription.key, True))
            raise AccessRefused(subscription.revoked)
        if refused is not None:
            channel.forget(subscription)
            if refused == EXCLUSIVE:
                raise in_exclusive_use(channel, queue)
            if refused == NAMES_FULL:
                raise PreconditionFailed(
                    f"{place_of(queue)} stores {connection.config.stream_names_max} named offsets already "
                    "(stream_names_max), so 'x-group' cannot add another name: delete one (mqctl "
                    "delete_stream_offset), or raise the limit"
                )
            raise not_served(queue, refused)

    connection.after(begin, attached)


def _check_count(channel: Channel) -> None:
    """Check that the channel may have another consumer; that of direct replies counts. Raises NotAllowed."""
    most = channel.connection.config.consumers_per_channel_max
    if len(channel.subscriptions) + (channel.reply_host is not None) >= most:
        raise NotAllowed(f"reached maximum ({most}) of consumers per channel")


def _check_stream_consumer(
    channel: Channel, method: commands.Basic.Consume, queue: Queue, arguments: dict[str, object]
) -> None:
    """Check a consumer of a stream. Raises NotImplemented_, PreconditionFailed, with RabbitMQ's texts."""
    if method.no_ack:
        raise NotImplemented_(f"automatic acknowledgement not supported by stream queues {place_of(queue)}")
    if "x-priority" in arguments:
        raise PreconditionFailed(
            f"invalid arg 'x-priority' for {place_of(queue)} of queue type rabbit_stream_queue"
        )
    if "x-group" in arguments and channel.broker.replication.version < versions.STREAM_NAMES:
        raise NotImplemented_(
            "'x-group' on a stream in a cluster needs nodes that all run a version of mqd that supports "
            f"it: {place_of(queue)}"
        )
    if not channel.prefetch:
        raise PreconditionFailed(f"consumer prefetch count is not set for '{place_of(queue)}'")


def _check_member(method: commands.Basic.Consume, queue: Queue, arguments: dict[str, object]) -> None:
    """Check a member of a consumer group. Raises PreconditionFailed."""
    if method.exclusive:
        raise PreconditionFailed(
            f"invalid property 'exclusive' for a consumer of {place_of(queue)}, which is a consumer group"
        )
    for argument in arguments:
        if argument == "x-priority" or argument.startswith("x-stream-") or argument == "x-group":
            raise PreconditionFailed(
                f"invalid arg '{argument}' for a consumer of {place_of(queue)}, which is a consumer group"
            )


def in_exclusive_use(channel: Channel, queue: Queue) -> AccessRefused:
    return AccessRefused(f"queue '{queue.name}' in vhost '{channel.vhost.name}' in exclusive use")


def _consumer_priority(channel: Channel, queue: str, arguments: dict[str, object]) -> int:
    if "x-priority" not in arguments:
        return 0
    priority = arguments["x-priority"]
    # A timestamp beyond the calendar is decoded to a number, which need not fit in a long.
    kind = argument_types(channel).get("x-priority") or tables.type_name(priority)
    if isinstance(priority, bool) or not isinstance(priority, int) or kind == "timestamp":
        raise PreconditionFailed(
            f"invalid arg 'x-priority' for queue '{queue}' in vhost '{channel.vhost.name}': "
            f'"expected integer, got {kind}"'
        )
    return priority


def _consumer_timeout(channel: Channel, queue: str, arguments: dict[str, object]) -> int:
    value = arguments["x-consumer-timeout"]
    kind = argument_types(channel).get("x-consumer-timeout") or tables.type_name(value)
    try:
        return argument_checks.lease_ms(value, kind)
    except argument_checks.Invalid as invalid:
        raise PreconditionFailed(
            f"invalid arg 'x-consumer-timeout' for queue '{queue}' in vhost '{channel.vhost.name}': {invalid}"
        ) from None


def _consume_replies(channel: Channel, method: commands.Basic.Consume, tag: str) -> None:
    if channel.reply_host is not None:
        raise PreconditionFailed("reply consumer already set")
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if tag in channel.subscriptions:
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    _check_count(channel)
    replies = _Replies(channel, tag)
    channel.reply_host = ReplyHost(channel.broker.turn, replies, channel.broker.replication.node)
    channel.reply_tag = tag
    channel.broker.replies.add(channel.reply_host)
    channel.broker.changed()
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(tag))


class _Replies(Subscription):
    """The consumer of direct replies: deliveries without a queue, which need no ack."""

    __slots__ = ()

    def __init__(self, channel: Channel, tag: str) -> None:
        self.channel = channel
        self.tag = tag
        self.no_ack = True
        self.exclusive = False
        # Only the channel counts these deliveries.
        self.traffic = Traffic()
        self.template = DeliverTemplate(channel.number, tag, channel.connection.limits.frame_max)


def cancel(channel: Channel, method: commands.Basic.Cancel) -> None:
    def cancelled(refused: Refused | None = None) -> None:
        if not method.nowait:
            channel.connection.synced()
            channel.send(commands.Basic.CancelOk(method.consumer_tag))

    subscription = channel.subscriptions.get(method.consumer_tag or "")
    if subscription is not None:
        channel.cancel(subscription)
        # Deliveries in progress to the consumer come before the answer.
        channel.connection.after(subscription.queue.barrier, cancelled)
        return
    if channel.reply_host is not None and channel.reply_tag == method.consumer_tag:
        channel.reply_host.close()
        channel.broker.replies.remove(channel.reply_host)
        channel.reply_host = None
        channel.broker.changed()
    cancelled()


def get(channel: Channel, method: commands.Basic.Get) -> None:
    name = resolve_name(channel, method.queue)
    access = channel.connection.client.access
    channel.broker.access.permissions.check(access, channel.vhost.name, "queue", name, "read")
    queue = find(channel, name)
    if queue.type.is_stream:
        raise NotImplemented_(f"basic.get not supported by stream queues {place_of(queue)}")
    queue.used()
    no_ack = bool(method.no_ack)
    getter = channel.getters.get((queue, no_ack, False))
    if getter is None:
        getter = channel.getters[queue, no_ack, False] = Getter(channel, queue, no_ack=no_ack)
    if queue.type.is_group:
        _check_getter(channel, queue, getter)
    consumer = Consumer(getter.key, no_ack=no_ack, sink=getter)
    # A getter is forgotten while it holds nothing. A new one continues its numbers, so that ids never repeat.
    consumer.next_id = channel.next_tag

    def got(got: Got | Refused | None) -> None:
        if isinstance(got, Refused):
            raise not_served(queue, got.text)
        if got is None:
            channel.traffic.get_empty += 1
            getter.traffic.get_empty += 1
            channel.send(commands.Basic.GetEmpty())
        else:
            _send_got(channel, got.run, getter.take(got), queue.host.ready_count)

    channel.connection.after(lambda done: queue.host.get(consumer, done), got)


def _check_getter(channel: Channel, queue: Queue, getter: Getter) -> None:
    """Check that a client may get messages of a group, unless nothing has changed since the last time. Raises
    AccessRefused.
    """
    client, generation = channel.connection.client, channel.broker.generation
    if getter.checked != generation or client.access != client.username:
        group_members.check(queue, client.access)
        getter.checked = generation


def _send_got(channel: Channel, run: Run, tag: int, ready: int) -> None:
    payload = (
        _GET_OK
        + tag.to_bytes(8, "big")
        + (b"\x01" if run.redelivered else b"\x00")
        + run.head_of(0)
        + ready.to_bytes(4, "big")
    )
    assert run.contents is not None
    put, item = channel.connection.outbox.put, run.contents[0]
    method, frame_max = (
        frames.raw_frame(frames.METHOD, channel.number, payload),
        channel.connection.limits.frame_max,
    )
    fits = run.attributes.channel == channel.number and run.attributes.frame_bytes <= frame_max
    if len(item) < LARGE_BYTES:
        put(method + (item if fits else content.restamp(item, channel.number, frame_max)))
        return
    put(method)
    # The queue has the same object: do not change it.
    for chunk in (item,) if fits else content.reframed(item, channel.number, frame_max):
        put(chunk)


def ack(channel: Channel, method: commands.Basic.Ack) -> None:
    _acknowledge(channel, "settle", method.delivery_tag or 0, multiple=bool(method.multiple))


def nack(channel: Channel, method: commands.Basic.Nack) -> None:
    verb = "return" if method.requeue else "discard"
    _acknowledge(channel, verb, method.delivery_tag or 0, multiple=bool(method.multiple))


def reject(channel: Channel, method: commands.Basic.Reject) -> None:
    # As in RabbitMQ 4.3 a nack only gives the message back.
    verb = "fail" if method.requeue else "discard"
    _acknowledge(channel, verb, method.delivery_tag or 0, multiple=False)


def _acknowledge(channel: Channel, verb: str, tag: int, *, multiple: bool) -> None:
    tag &= (1 << 64) - 1
    if multiple and channel.unacked.are_many(tag):
        channel.acknowledge_many(verb, tag, _nothing)
    elif multiple:
        channel.acknowledge(verb, 0, tag)
    elif tag == 0:
        raise PreconditionFailed("unknown delivery tag 0")
    else:
        channel.acknowledge(verb, tag, tag)


def recover(channel: Channel, method: commands.Basic.Recover) -> None:
    _recover(channel, lambda: channel.send(commands.Basic.RecoverOk()), requeue=bool(method.requeue))


def recover_async(channel: Channel, method: commands.Basic.RecoverAsync) -> None:
    _recover(channel, _nothing, requeue=bool(method.requeue))


def _recover(channel: Channel, then: Callable[[], None], *, requeue: bool) -> None:
    if not requeue:
        raise NotImplemented_("requeue=false")
    if channel.unacked.are_many(0):
        channel.acknowledge_many("return", 0, then, outside=True)
    else:
        channel.settle("return", channel.unacked.take_all())
        then()


def _nothing() -> None: ...


def confirm_select(channel: Channel, method: commands.Confirm.Select) -> None:
    if channel.tx is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.broker.turn, channel.connection.outbox, channel.number)
    if not method.nowait:
        channel.send(commands.Confirm.SelectOk())


def tx_select(channel: Channel, method: commands.Tx.Select) -> None:
    if channel.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction(channel)
    channel.send(commands.Tx.SelectOk())


def tx_commit(channel: Channel, method: commands.Tx.Commit) -> None:
    transaction = channel.tx
    if transaction is None:
        raise PreconditionFailed("channel is not transactional")

    transaction.close()
    transaction.check_producer()
    transaction.check_paused()
    transaction.check_waits()
    if transaction.is_prepared:
        _commit_prepared(channel, transaction)
        return
    transaction.check_acks()

    def committed(refused: Refused | None = None) -> None:
        if refused is not None:
            raise Unavailable(refused.text)
        channel.connection.synced()
        if transaction.origin.partial:
            transaction.origin.partial = False
            raise PreconditionFailed("partial tx completion")
        channel.send(commands.Tx.CommitOk())

    def published(refused: Refused | None = None) -> None:
        """All queues have the messages: apply the acks now. If a queue refused, the channel closes, and its
        deliveries are requeued.
        """
        if refused is not None or transaction.origin.partial:
            committed(refused)
        else:
            _commit(channel, transaction, _answered, committed, checked=True)

    if transaction.in_two:
        _commit(channel, transaction, _stored, published, acks=False)
    else:
        _commit(channel, transaction, _answered, committed)


def _commit_prepared(channel: Channel, transaction: Transaction) -> None:
    commit = PreparedCommit(channel, transaction)

    def ended(refused: Refused | None = None) -> None:
        if commit.refused:
            raise PreconditionFailed(f"{NOTHING_DONE}, because {commit.refused}")
        if refused is not None:
            raise Unavailable(refused.text)
        channel.send(commands.Tx.CommitOk())

    channel.connection.after(commit.begin, ended)


def _commit(
    channel: Channel,
    transaction: Transaction,
    answered: Answered,
    then: Callable[..., None],
    *,
    acks: bool = True,
    checked: bool = False,
) -> None:
    """Hand the transaction to the queues, without the acks if not `acks`; then continue as soon as `answered`
    calls back. `checked`: a part of it is committed already.
    """
    if transaction.is_large:
        _commit_large(
            channel,
            LargeCommit(channel, transaction, acks=acks, checked=checked),
            transaction,
            answered,
            then,
        )
        return
    hosts = transaction.commit(acks=acks)
    # All parts of the transaction reach the disk at once.
    channel.broker.turn.apply(whole=True)
    channel.connection.after(lambda done: answered(channel, transaction, hosts, done), then)


def _commit_large(
    channel: Channel,
    large: LargeCommit,
    transaction: Transaction,
    answered: Answered,
    then: Callable[..., None],
) -> None:
    def begin(done: Callable[..., None]) -> None:
        def handed_over() -> None:
            if large.is_prepared or large.refused is not None:
                done()
            else:
                answered(channel, transaction, list(large.hosts), done)

        large.begin(handed_over)

    def go_on(*why: Refused) -> None:
        if large.refused is not None:
            raise large.refused
        if large.is_prepared:
            _commit_prepared(channel, transaction)
        else:
            then(*why)

    channel.connection.after(begin, go_on)


def _stored(
    channel: Channel, transaction: Transaction, hosts: list[Recipient], done: Callable[..., None]
) -> None:
    """Call `done` when all hosts have answered, and the data of this node's journal is on disk."""

    def passed(*why: Refused) -> None:
        commits = channel.broker.services.commits
        if why or not commits.unsynced:
            done(*why)
        else:
            commits.request(done)

    _answered(channel, transaction, hosts, passed)


def _answered(
    channel: Channel, transaction: Transaction, hosts: list[Recipient], done: Callable[..., None]
) -> None:
    """Call `done` when all hosts have answered, and all messages that chose their level of confirmation."""
    answers = transaction.origin.take_answers()
    if answers is None:
        _barriers(hosts, done)
        return

    def passed(*why: Refused) -> None:
        if why:
            done(*why)
        else:
            answers.when_complete(done)

    _barriers(hosts, passed)


def _barriers(hosts: list[Recipient], done: Callable[..., None]) -> None:
    """Call `done` when all hosts have answered, with the last refusal if there was one."""
    left = len(hosts)
    refusals: list[Refused] = []

    def answered(refused: Refused | None = None) -> None:
        nonlocal left
        left -= 1
        # A queue that is deleted meanwhile takes its messages of this transaction with it, as in RabbitMQ.
        if refused is not None and refused != DELETED:
            refusals.append(refused)
        if not left:
            done(*refusals[-1:])

    for host in hosts:
        host.barrier(answered)
    if not hosts:
        done()


def tx_rollback(channel: Channel, method: commands.Tx.Rollback) -> None:
    transaction = channel.tx
    if transaction is None:
        raise PreconditionFailed("channel is not transactional")

    transaction.close()

    def rolled_back() -> None:
        channel.send(commands.Tx.RollbackOk())

    if transaction.is_large:
        channel.connection.after(LargeEnd(channel, transaction.rollback_in_parts()).begin, rolled_back)
        return
    transaction.rollback()
    rolled_back()


def flow(channel: Channel, method: commands.Channel.Flow) -> None:
    if not method.active:
        raise NotImplemented_("active=false")
    channel.send(commands.Channel.FlowOk(True))
