"""The whole state of a machine as bytes, and its digest.

It has no bodies, only their sizes: the host knows where bodies are. A million messages are a few hundred
runs, each a few fields and an array of sizes (one number if all are equal).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

import msgspec

from quorum_queue.machine import versions
from quorum_queue.machine.arrays import packed, unpacked
from quorum_queue.machine.attributes import Attributes
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import State as LettersState
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.run import Run, stretches
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.states import DedupState


class _Run(msgspec.Struct, array_like=True, gc=False):
    start: int
    count: int
    step: int
    #: One size for all messages, or an array of sizes.
    sizes: int | bytes
    head: bytes
    heads: list[bytes] | None
    attributes: Attributes
    expires_at: int | None
    redelivered: bool
    attempts: int


class _Consumer(msgspec.Struct, array_like=True):
    key: Any
    channel: Any
    no_ack: bool
    own_prefetch: int
    window_limit: int
    priority: int
    exclusive: bool
    paused: bool
    attached: bool
    active: bool
    next_id: int
    #: (first delivery id, messages)
    held: list[tuple[int, _Run]]


class _Machine(msgspec.Struct, array_like=True):
    version: int
    settings: Settings
    next_seq: int
    last_used_ms: int
    ready: list[_Run]
    dead_lettering: list[tuple[Reason, _Run]]
    consumers: list[_Consumer]
    dedup: DedupState | None


class _MachineWithLetters(_Machine, array_like=True):
    """From versions.LETTERS on."""

    letters: LettersState = []


class _SealableMachine(_MachineWithLetters, array_like=True):
    """From versions.SEALS on."""

    sealed: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_SealableMachine)


def encode(machine: Machine) -> bytes:
    """Return everything but bodies, sinks and windows, as the version of the machine has it."""
    consumers = machine.consumers
    fields = (
        machine.version,
        machine.settings,
        machine.next_seq,
        machine.last_used_ms,
        [_plain(part) for run in machine.ready.runs() for part in _uniform(run)],
        [(reason, _plain(run)) for run, reason in machine.dead_lettering.values()],
        [_plain_consumer(consumer, consumer is consumers.active) for consumer in consumers.in_turn()],
        None if machine.dedup is None else machine.dedup.state(),
    )
    if machine.version < versions.LETTERS:
        return _encoder.encode(_Machine(*fields))
    if machine.version < versions.SEALS:
        return _encoder.encode(_MachineWithLetters(*fields, machine.letters.state()))
    return _encoder.encode(_SealableMachine(*fields, machine.letters.state(), machine.sealed))


def decode(data: bytes | memoryview) -> Machine:
    """Build a machine from the result of `encode`; the host has to restore sinks and windows. Raises
    CodecError.
    """
    try:
        state = _decoder.decode(data)
        check_version(state.version)
        return _machine(state)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise CodecError(f"no snapshot of a queue: {error}") from error


def check_version(version: int) -> None:
    """Raises CodecError for a snapshot of a newer version than this mqd's."""
    if not versions.FIRST <= version <= versions.NEWEST:
        raise CodecError(f"a snapshot has version {version}, this mqd reads versions up to {versions.NEWEST}")


def digest(machine: Machine) -> bytes:
    """16 bytes that are equal on replicas in the same state, however runs
    are cut and whatever is in memory.
    """
    digest = blake2b(digest_size=16)
    fields = asdict(machine.settings), machine.next_seq, machine.last_used_ms
    digest.update(repr(fields).encode())
    _digest_ready(digest.update, machine.ready.runs())
    for run, reason in machine.dead_lettering.values():
        digest.update(reason.encode())
        _digest_singly(digest.update, run, 0)
    for consumer in machine.consumers.in_turn():
        plain = _plain_consumer(consumer, consumer is machine.consumers.active)
        plain.held = []
        digest.update(_encoder.encode(plain))
        for first, run in zip(consumer.checkout.starts, consumer.checkout.runs, strict=True):
            _digest_singly(digest.update, run, first)
    if machine.dedup is not None:
        digest.update(_encoder.encode(machine.dedup.state()))
    if machine.version >= versions.LETTERS:
        digest.update(_encoder.encode((machine.version, machine.letters.state())))
    if machine.sealed:
        digest.update(b"sealed")
    return digest.digest()


def sizes_of(run: Run) -> array[int]:
    """Return the size of each content, whether they are in memory or not."""
    if run.contents is not None:
        return array("I", map(len, run.contents))
    assert run.sizes is not None
    return run.sizes


def _uniform(run: Run) -> Iterator[Run]:
    """Yield a run, or copies of its parts, so that its messages differ in their content and routing only."""
    for part in run.uniform():
        deadlines = part.deadlines
        if deadlines is None:
            yield part
            continue
        for start, stop in stretches(deadlines):
            one = part.part(start, stop)
            one.expires_at, one.deadlines = part.due_of(start), None
            yield one


def _plain(run: Run) -> _Run:
    """Return a run whose messages differ in their content and routing only."""
    sizes = sizes_of(run)
    alike = sizes.count(sizes[0]) == len(sizes)
    return _Run(
        run.seqs.start,
        len(run.seqs),
        run.seqs.step,
        sizes[0] if alike else packed(sizes),
        run.head if run.heads is None else b"",
        run.heads,
        run.attributes,
        run.expires_at,
        run.redelivered,
        run.attempts,
    )


def _run(plain: _Run) -> Run:
    count = plain.count
    sizes = (
        unpacked("I", plain.sizes) if isinstance(plain.sizes, bytes) else array("I", [plain.sizes]) * count
    )
    if count < 1 or plain.step < 1 or len(sizes) != count:
        raise CodecError("a run in a snapshot does not fit together")
    if plain.heads is not None and len(plain.heads) != count:
        raise CodecError(f"a run of {count} messages has the routing of {len(plain.heads)}")
    seqs = range(plain.start, plain.start + count * plain.step, plain.step)
    run = Run(seqs, None, plain.head, plain.attributes, plain.expires_at, sum(sizes))
    run.sizes, run.heads = sizes, plain.heads
    run.redelivered, run.attempts = plain.redelivered, plain.attempts
    return run


def _plain_consumer(consumer: Consumer, active: bool) -> _Consumer:
    return _Consumer(
        consumer.key,
        consumer.channel,
        consumer.no_ack,
        consumer.own_prefetch,
        consumer.window_limit,
        consumer.priority,
        consumer.exclusive,
        consumer.paused,
        consumer.attached,
        active,
        consumer.next_id,
        list(_plain_held(consumer)),
    )


def _plain_held(consumer: Consumer) -> Iterator[tuple[int, _Run]]:
    for first, run in zip(consumer.checkout.starts, consumer.checkout.runs, strict=True):
        at = first
        for part in _uniform(run):
            yield at, _plain(part)
            at += len(part.seqs)


def _machine(state: _SealableMachine) -> Machine:
    machine = Machine(state.settings, state.next_seq, version=state.version)
    machine.sealed = state.sealed
    machine.letters.restore(state.letters)
    machine.last_used_ms = state.last_used_ms
    for plain in state.ready:
        run = _run(plain)
        if run.redelivered:
            machine.ready.put_back([run])
        else:
            machine.ready.push(run)
    for reason, plain in state.dead_lettering:
        run = _run(plain)
        machine.hold_letter(run, reason)
    for fields in state.consumers:
        _restore_consumer(machine, fields)
    if machine.dedup is not None and state.dedup is not None:
        machine.dedup.restore(state.dedup)
    return machine


def _restore_consumer(machine: Machine, fields: _Consumer) -> None:
    consumer = Consumer(
        _hashable(fields.key),
        no_ack=fields.no_ack,
        prefetch=fields.own_prefetch,
        priority=fields.priority,
        exclusive=fields.exclusive,
        channel=_hashable(fields.channel),
        window_limit=fields.window_limit,
    )
    consumer.paused, consumer.next_id = fields.paused, fields.next_id
    for first, plain in fields.held:
        run = _run(plain)
        consumer.checkout.add(first, run)
        machine.unacked_bytes += run.counted_bytes
    machine.unacked_count += consumer.checkout.count
    if fields.attached:
        machine.consumers.attach(consumer)
    else:
        consumer.attached = False
        machine.consumers.keep(consumer)
    if fields.active:
        machine.consumers.active = consumer


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def _digest_ready(update: Callable[[bytes], None], runs: Iterable[Run]) -> None:
    """Feed the ready messages as the longest stretches that share everything but their size."""
    shared: tuple[Any, ...] = ()
    start = stop = 0
    parts: list[bytes] = []

    def end() -> None:
        if parts:
            update(repr((start, stop, shared)).encode())
            update(b"".join(parts))

    for run in runs:
        sizes = packed(sizes_of(run))
        for low, high in _alike(run):
            fields = (run.head_of(low), *_shared(run, low))
            if fields != shared or run.seqs[low] != stop:
                end()
                shared, start, parts = fields, run.seqs[low], []
            stop = run.seqs.start + high
            parts.append(sizes[4 * low : 4 * high])
    end()


def _alike(run: Run) -> Iterator[tuple[int, int]]:
    """Cut a run wherever anything but the size changes."""
    count = len(run.seqs)
    heads, deadlines, kinds = run.heads, run.deadlines, run.kinds
    if heads is None and deadlines is None and kinds is None:
        yield 0, count
        return
    low = 0
    for index in range(1, count):
        if (
            (heads is not None and heads[index] != heads[low])
            or (deadlines is not None and deadlines[index] != deadlines[low])
            or (kinds is not None and kinds[index] != kinds[low])
        ):
            yield low, index
            low = index
    yield low, count


def _digest_singly(update: Callable[[bytes], None], run: Run, first_id: int) -> None:
    """Feed messages one by one, each with its delivery id."""
    sizes = sizes_of(run)
    for low, high in _alike(run):
        shared = _shared(run, low)
        for index in range(low, high):
            seq = run.seqs[index]
            update(repr((first_id + index, seq, sizes[index], run.head_of(index), *shared)).encode())


def _shared(run: Run, index: int) -> tuple[Any, ...]:
    """The attributes of a message without the frame size: a run keeps the largest, so it depends on the
    cut.
    """
    attributes = tuple(run.attributes_of(index)._replace(frame_bytes=0))
    return attributes, run.due_of(index), run.redelivered, run.attempts
