"""Entries of a replicated queue's log: the commands of the nodes, as bytes.

    entry   u8 version | u64 now_ms | batches, one after the other
    batch   lengths | node | consumer keys | commands | sizes of all messages | bodies, one after the other

Each node makes batches of its own commands; the leader puts those that came together into one entry, adds the
time, and decodes none. The ordinal in the entry identifies a message: it counts messages over all enqueues of
all batches, in order. A member that applies an entry reads everything except bodies; the work is per run, not
per message.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from quorum_queue.machine import versions
from quorum_queue.machine.arrays import packed
from quorum_queue.machine.attributes import ATTRIBUTES, LEADER, PRIORITY_ZERO, PROMISED
from quorum_queue.machine.bodies import BATCH, ENTRY, VERSION, Bodies, sections
from quorum_queue.machine.codec import CodecError, decode_kinds, encode_kinds, framed, unframed
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.dedup import Names, Sequence, is_name
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.machine import ENQUEUES, LATEST_MS, Command
from quorum_queue.machine.parts import TransactionId
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.seal import CONDITIONS_MAX
from quorum_queue.machine.settings import Settings

#: A consumer's key on a replica is (node, incarnation, *key on the node). Keys of one channel share this many
#: fields.
CHANNEL_FIELDS: Final = 4

#: verb, origin + 1 (0 none), first, messages, flags, priority, ttl_ms (-1 none), channel, frame_bytes,
#: overhead, bytes of heads, of ids
_ENQUEUE: Final = struct.Struct(">BQQIBBqHIIII")
#: The same, with everything from the flags to the overhead as raw bytes, and these fields separately.
_ENQUEUED: Final = struct.Struct(">BQQI20sII")
_ENQUEUE_BYTES: Final = 49
_ATTRIBUTES: Final = struct.Struct(">BBqHII")
_MIXED: Final = 1
_PERSISTENT: Final = 2
_WITH_IDS: Final = 4
_WITH_SEQUENCE: Final = 8
_WITH_LETTER: Final = 16
#: Position of the level of confirmation in these flags. Batches for a queue's home have it. The log has only
#: PROMISED, from versions.PAUSES on.
_LEVEL_SHIFT: Final = 5
_LEVEL_MASK: Final = 3
#: In the length of the ids, from versions.RECORD on: message-ids come after the names, of which the length
#: comes first.
_WITH_MESSAGE_IDS: Final = 1 << 31
#: The same, from versions.DELAYS on: before all of it is how long (ms) the messages are to wait.
_WITH_WAIT: Final = 1 << 30
#: The same, from versions.KINDS on: behind how long they wait are the attributes of each message.
_WITH_KINDS: Final = 1 << 29
_IDS_MASK: Final = _WITH_KINDS - 1
_TIME: Final = struct.Struct(">Q")
#: The messages have a priority, and it is 0. Earlier versions ignore it.
_PRIORITY_ZERO: Final = 128
#: verb, key, first and last delivery id
_RANGE: Final = struct.Struct(">BIQQ")
_RANGE_BYTES: Final = 21
#: verb, key, first and last delivery id, how long they wait (ms), whether they failed
_RETRY: Final = struct.Struct(">BIQQQB")
#: verb, key, flags, prefetch, window's limit, priority, next delivery id
_ATTACH: Final = struct.Struct(">BIBQQqQ")
_NO_ACK, _EXCLUSIVE, _PAUSED = 1, 2, 4
#: From versions.PICKS on, of a get: the place of the prefetch has the position that it wants.
#: From versions.CANCELS on, the place of the window's limit has the time until which that message waits.
_PICKS: Final = 8
#: verb, key, value
_VALUE: Final = struct.Struct(">BIQ")
#: verb, two numbers
_NUMBERS: Final = struct.Struct(">BQQ")
#: source, position, low
_LETTER: Final = struct.Struct(">QQQ")
#: bytes of names before message-ids
_NAMES: Final = struct.Struct(">I")
#: verb, bytes that follow
_BLOB: Final = struct.Struct(">BI")

_V_ENQUEUE: Final = 1
_V_SETTLE: Final = 2
_V_RETURN: Final = 3
_V_DISCARD: Final = 4
_V_ATTACH: Final = 5
_V_GET: Final = 6
_V_DETACH: Final = 7
_V_PAUSE: Final = 8
_V_PREFETCH: Final = 9
_V_WINDOW: Final = 10
_V_PURGE: Final = 11
_V_CONFIGURE: Final = 12
_V_TICK: Final = 13
_V_TOUCH: Final = 14
_V_DEAD_LETTERED: Final = 15
_V_NODE_DOWN: Final = 16
_V_VERSION: Final = 17
_V_LOSE: Final = 18
#: From versions.SEALS on.
_V_SEAL: Final = 19
#: From versions.TRANSACTIONS on. `pend` comes before the command that it is about.
_V_PEND: Final = 20
_V_PREPARE: Final = 21
_V_RESOLVE: Final = 22
#: From versions.RECORD on. Only in batches for a queue's home, not in the log.
_V_STATUS: Final = 23
#: From versions.FAILURES on.
_V_FAIL: Final = 24
#: From versions.RETRY_WAITS on.
_V_RETRY: Final = 25
_RANGES = {"settle": _V_SETTLE, "return": _V_RETURN, "discard": _V_DISCARD, "fail": _V_FAIL}
_RANGE_NAMES = {verb: name for name, verb in _RANGES.items()}
_VALUES = {"detach": _V_DETACH, "pause": _V_PAUSE, "prefetch": _V_PREFETCH, "window": _V_WINDOW}
_VALUE_NAMES = {verb: name for name, verb in _VALUES.items()}
_PLAIN_COMMANDS: dict[int, Command] = {_V_TICK: ("tick",), _V_TOUCH: ("touch",)}
_PLAIN_VERBS = {"tick": _V_TICK, "touch": _V_TOUCH}

#: Flags of a consumer on a replica.
Key = tuple[Any, ...]

_key_decoder: Final = msgspec.msgpack.Decoder(tuple[bool | int | str | None, ...])
_transaction_decoder: Final = msgspec.msgpack.Decoder(TransactionId)
_prepare_decoder: Final = msgspec.msgpack.Decoder(tuple[int | None, TransactionId, int, list[int], int])
_resolve_decoder: Final = msgspec.msgpack.Decoder(tuple[TransactionId, bool])
_settings_decoder = msgspec.msgpack.Decoder(Settings)
_encode = msgspec.msgpack.encode


class Batch:
    """Commands of one node, as they were made in one of its turns."""

    __slots__ = ("commands", "incarnation", "node", "number")

    def __init__(self, node: str, incarnation: int, number: int, commands: list[Command]) -> None:
        self.node = node
        #: The start of the node.
        self.incarnation = incarnation
        #: Consecutive from 1 within an incarnation.
        self.number = number
        self.commands = commands


class DecodedEntry:
    """An entry ready to be applied: runs have sizes, and bodies are found on demand."""

    __slots__ = ("batches", "bodies", "now_ms")

    def __init__(self, now_ms: int, batches: list[Batch], bodies: Bodies) -> None:
        self.now_ms = now_ms
        self.batches = batches
        self.bodies = bodies


# -- encoding ------------------------------------------------------------------------------------------------


def encode_batch(
    node: str,
    incarnation: int,
    number: int,
    commands: Iterable[Command],
    *,
    levels: bool = False,
    promises: bool = False,
) -> list[bytes]:
    """Return the parts that make up the batch; bodies must be in memory, and are not copied.

    Commands are as hosts make them, with the keys that consumers have on their own node, but an origin is a
    number or None, and so is the token of a purge. `levels`: include the levels of confirmation; `promises`:
    mark what the leader may confirm early.
    """
    keys: dict[Any, int] = {}
    encoded_keys: list[bytes] = []

    def key_number(key: Any) -> int:
        found = keys.get(key)
        if found is None:
            found = keys[key] = len(keys)
            encoded_keys.append(framed(_encode(tuple(key))))
        return found

    parts: list[bytes] = []
    sizes = array("I")
    bodies: list[bytes] = []
    for command in commands:
        verb = command[0]
        if verb == "pend":
            transaction = _encode(command[1])
            parts += (_BLOB.pack(_V_PEND, len(transaction)), transaction)
            command = command[2]
            verb = command[0]
        if verb in _RANGES:
            parts.append(_RANGE.pack(_RANGES[verb], key_number(command[1]), command[2], command[3]))
        elif verb == "retry":
            _, key, low, high, wait_ms, failed = command
            parts.append(_RETRY.pack(_V_RETRY, key_number(key), low, high, wait_ms, failed))
        elif verb in ENQUEUES:
            contents = command[1].contents
            assert contents
            sizes.extend(map(len, contents))
            bodies += contents
            parts += _encode_enqueue(command, levels, promises)
        elif verb in _VALUES:
            value = _limit(command[2]) if verb == "window" else int(command[2])
            parts.append(_VALUE.pack(_VALUES[verb], key_number(command[1]), value))
        elif verb == "attach" or verb == "get":
            parts.append(_encode_consumer(verb, command[1], key_number(command[1].key)))
        elif verb in _PLAIN_VERBS:
            parts.append(bytes((_PLAIN_VERBS[verb],)))
        else:
            parts += _encode_rare(command)
    name = node.encode()
    key_block, command_block, size_block = b"".join(encoded_keys), b"".join(parts), packed(sizes)
    prefix = BATCH.pack(
        incarnation, number, len(name), len(key_block), len(command_block), len(sizes), sum(sizes)
    )
    return [b"".join((prefix, name, key_block, command_block, size_block)), *bodies]


def _encode_enqueue(command: Command, levels: bool, promises: bool) -> list[bytes]:
    _, run, origin, first, *rest = command
    attributes: Attributes = run.attributes
    routing = run.head if run.heads is None else b"".join(map(framed, run.heads))
    flags = (_MIXED if run.heads is not None else 0) | (_PERSISTENT if attributes.persistent else 0)
    ids = b""
    message_ids: list[bytes] | None = None
    if command[0] == "enqueue_known":
        message_ids, *rest = rest
    elif command[0] == "enqueue_letter":
        flags, ids = flags | _WITH_LETTER, _LETTER.pack(*rest[0])
        if len(rest) > 1:
            message_ids = rest[1]
        rest = []
    if rest:
        named, ids = _encode_names(rest[0])
        flags |= named
    with_ids = 0
    if message_ids is not None:
        with_ids = _WITH_MESSAGE_IDS
        ids = b"".join((_NAMES.pack(len(ids)), ids, *map(framed, message_ids)))
    if run.kinds is not None and run.table is not None:
        with_ids |= _WITH_KINDS
        ids = encode_kinds(run.kinds, run.table) + ids
    if run.waits_until:
        with_ids |= _WITH_WAIT
        ids = _TIME.pack(run.waits_until) + ids
    if attributes.priority < 0:
        flags |= _PRIORITY_ZERO
    if levels:
        flags |= attributes.confirm_level << _LEVEL_SHIFT
    elif promises and attributes.confirm_level == LEADER:
        flags |= PROMISED << _LEVEL_SHIFT
    head = _ENQUEUE.pack(
        _V_ENQUEUE,
        0 if origin is None else origin + 1,
        first,
        len(run.contents),
        flags,
        max(attributes.priority, 0),
        -1 if attributes.ttl_ms is None else attributes.ttl_ms,
        attributes.channel,
        attributes.frame_bytes,
        attributes.overhead,
        len(routing),
        len(ids) | with_ids,
    )
    return [head, routing, ids]


def _encode_names(names: Names) -> tuple[int, bytes]:
    if isinstance(names, Sequence):
        return _WITH_SEQUENCE, names.first
    return _WITH_IDS, b"".join(framed(name or b"") for name in names)


def _encode_consumer(verb: str, consumer: Consumer, key: int) -> bytes:
    flags = (_NO_ACK if consumer.no_ack else 0) | (_EXCLUSIVE if consumer.exclusive else 0)
    if consumer.position:
        flags |= _PICKS
    return _ATTACH.pack(
        _V_ATTACH if verb == "attach" else _V_GET,
        key,
        flags | (_PAUSED if consumer.paused else 0),
        consumer.position or consumer.own_prefetch,
        consumer.due_ms if consumer.position else consumer.window_limit or _limit(consumer.window),
        consumer.priority,
        consumer.next_id,
    )


def _limit(window: Any) -> int:
    """Return the limit of a channel's window, 0 for none."""
    if window is None or isinstance(window, int):
        return window or 0
    limit: int = window.limit
    return limit


def _encode_rare(command: Command) -> list[bytes]:
    verb = command[0]
    if verb == "purge":
        token = command[1] if len(command) > 1 else None
        return [_NUMBERS.pack(_V_PURGE, 0 if token is None else token + 1, 0)]
    if verb == "seal":
        token = command[1]
        return [_NUMBERS.pack(_V_SEAL, 0 if token is None else token + 1, command[2])]
    if verb == "status":
        return [_NUMBERS.pack(_V_STATUS, command[1], len(command[2])), command[2]]
    if verb == "dead_lettered":
        return [_NUMBERS.pack(_V_DEAD_LETTERED, command[1], command[2])]
    if verb == "lose":
        return [_NUMBERS.pack(_V_LOSE, command[1], command[2])]
    if verb == "configure":
        settings = _encode(command[1])
        return [_BLOB.pack(_V_CONFIGURE, len(settings)), settings]
    if verb == "node_down":
        name = command[1].encode()
        return [_NUMBERS.pack(_V_NODE_DOWN, command[2], len(name)), name]
    if verb == "version":
        return [_NUMBERS.pack(_V_VERSION, command[1], 0)]
    if verb == "prepare" or verb == "resolve":
        fields = _encode(command[1:])
        return [_BLOB.pack(_V_PREPARE if verb == "prepare" else _V_RESOLVE, len(fields)), fields]
    raise ValueError(f"no command {verb!r}")


def encode_entry(now_ms: int, batches: Iterable[bytes]) -> bytes:
    """Put whole batches, or the parts of batches, into one entry."""
    return b"".join((ENTRY.pack(VERSION, now_ms), *batches))


# -- decoding ------------------------------------------------------------------------------------------------


def decode_entry(data: bytes | memoryview) -> DecodedEntry:
    """Return the commands of an entry, runs without their bodies. Raises CodecError."""
    try:
        now_ms, found, bodies = sections(data)
        batches: list[Batch] = []
        ordinal = 0
        for section in found:
            incarnation, sizes = section.incarnation, section.sizes
            node, keys = _names_of(section.names, section.node_bytes, incarnation)
            decoder = _Decoder(keys, section.commands, sizes, ordinal)
            batches.append(Batch(node, incarnation, section.number, decoder.commands()))
            ordinal += len(sizes)
        return DecodedEntry(now_ms, batches, bodies)
    except (struct.error, msgspec.MsgspecError, ValueError, IndexError) as error:
        raise CodecError(f"no entry of a queue: {error}") from error


#: The node, and the keys of consumers, of batches decoded lately: those of one client are the same again and
#: again.
_named: Final[dict[tuple[int, int, bytes], tuple[str, list[Key]]]] = {}
#: Attributes by their bytes. Runs with the same ones share an object.
_attributes: Final[dict[bytes, Attributes]] = {}
#: Number of cached batches, and of cached attributes; and the longest cached names of a batch, in bytes: a
#: batch of very many consumers hardly ever comes again.
MEMO_MAX: Final = 4096
MEMO_BYTES_MAX: Final = 512


def _names_of(names: bytes, node_bytes: int, incarnation: int) -> tuple[str, list[Key]]:
    """Return the node of a batch, and the keys that its consumers have on a replica."""
    memo = (incarnation, node_bytes, names)
    known = _named.get(memo)
    if known is None:
        node = names[:node_bytes].decode()
        owner = node, incarnation
        known = node, [owner + _key_decoder.decode(key) for key in unframed(names[node_bytes:])]
        if len(names) <= MEMO_BYTES_MAX:
            if len(_named) >= MEMO_MAX:
                _named.clear()
            _named[memo] = known
    return known


def _attributes_of(packed_fields: bytes) -> Attributes:
    """Return the attributes of messages from their part of an enqueue."""
    known = _attributes.get(packed_fields)
    if known is None:
        flags, priority, ttl_ms, channel, frame_bytes, overhead = _ATTRIBUTES.unpack(packed_fields)
        known = ATTRIBUTES[flags >> _LEVEL_SHIFT & _LEVEL_MASK](
            bool(flags & _PERSISTENT),
            PRIORITY_ZERO if flags & _PRIORITY_ZERO else priority,
            None if ttl_ms < 0 else ttl_ms,
            channel,
            frame_bytes,
            overhead,
        )
        if len(_attributes) >= MEMO_MAX:
            _attributes.clear()
        _attributes[packed_fields] = known
    return known


def _decode_names(flags: int, block: bytes, count: int) -> Names:
    if flags & _WITH_SEQUENCE:
        return Sequence.from_first(block, count)
    names = [name or None for name in unframed(block, count)]
    if not all(name is None or is_name(name) for name in names):
        raise CodecError("a message has a name that is none")
    return names


class _Decoder:
    """Reads the commands of one batch."""

    __slots__ = ("_data", "_keys", "_offset", "_ordinal", "_sizes", "_taken")

    def __init__(self, keys: list[Key], data: bytes, sizes: array[int], ordinal: int) -> None:
        self._keys = keys
        self._data = data
        self._offset = 0
        self._sizes = sizes
        #: Ordinal of the batch's first message.
        self._ordinal = ordinal
        #: Number of messages decoded so far.
        self._taken = 0

    def commands(self) -> list[Command]:
        data, end, keys = self._data, len(self._data), self._keys
        commands: list[Command] = []
        while self._offset < end:
            verb = data[self._offset]
            if verb == _V_ENQUEUE:
                commands.append(self._enqueue())
            elif verb in _RANGE_NAMES:
                found: tuple[int, int, int, int] = _RANGE.unpack_from(data, self._offset)
                self._offset += _RANGE_BYTES
                commands.append((_RANGE_NAMES[verb], keys[found[1]], found[2], found[3]))
            elif verb == _V_RETRY:
                _, number, low, high, wait_ms, failed = _RETRY.unpack_from(data, self._offset)
                self._offset += _RETRY.size
                commands.append(("retry", keys[number], low, high, min(wait_ms, LATEST_MS), bool(failed)))
            elif verb in _VALUE_NAMES:
                _, key, value = _VALUE.unpack_from(data, self._offset)
                self._offset += _VALUE.size
                flag = verb in (_V_DETACH, _V_PAUSE)
                commands.append((_VALUE_NAMES[verb], keys[key], bool(value) if flag else value))
            elif verb in (_V_ATTACH, _V_GET):
                commands.append(self._consumer())
            elif verb in _PLAIN_COMMANDS:
                self._offset += 1
                commands.append(_PLAIN_COMMANDS[verb])
            elif verb == _V_PEND:
                transaction = _transaction_decoder.decode(self._blob())
                commands.append(("pend", transaction, self._pended()))
            else:
                commands.append(self._rare(verb))
        if self._taken != len(self._sizes):
            raise CodecError(f"a batch has {len(self._sizes)} messages, its commands {self._taken}")
        return commands

    def _blob(self) -> bytes:
        _, size = _BLOB.unpack_from(self._data, self._offset)
        self._offset += _BLOB.size
        return self._take(size)

    def _pended(self) -> Command:
        """Return the command of a part of a transaction."""
        verb = self._data[self._offset] if self._offset < len(self._data) else 0
        if verb == _V_ENQUEUE:
            return self._enqueue()
        if verb not in (_V_SETTLE, _V_RETURN, _V_DISCARD, _V_FAIL):
            raise CodecError(f"a part of a transaction has a command with the number {verb}")
        found: tuple[int, int, int, int] = _RANGE.unpack_from(self._data, self._offset)
        self._offset += _RANGE_BYTES
        return _RANGE_NAMES[verb], self._keys[found[1]], found[2], found[3]

    def _enqueue(self) -> Command:
        at = self._offset
        fields: tuple[int, int, int, int, bytes, int, int] = _ENQUEUED.unpack_from(self._data, at)
        _, origin, first, count, packed_fields, routing_bytes, ids = fields
        flags = packed_fields[0]
        self._offset = at + _ENQUEUE_BYTES
        routing = self._take(routing_bytes)
        low, high = self._taken, self._taken + count
        if not count or high > len(self._sizes):
            raise CodecError(f"a batch of {len(self._sizes)} messages has none from {low} to {high - 1}")
        self._taken = high
        sizes = self._sizes[low:high]
        ordinal = self._ordinal + low
        attributes = _attributes_of(packed_fields)
        run = Run(range(ordinal, ordinal + count), None, routing, attributes, None, sum(sizes))
        run.sizes = sizes
        if flags & _MIXED:
            run.head, run.heads = b"", unframed(routing, count)
        publisher = origin - 1 if origin else None
        block = self._take(ids & _IDS_MASK)
        if ids & _WITH_WAIT:
            (wait_ms,) = _TIME.unpack_from(block)
            # A damaged time must not be one that no queue can reach.
            run.waits_until = min(wait_ms, LATEST_MS)
            block = block[_TIME.size :]
        if ids & _WITH_KINDS:
            level = flags >> _LEVEL_SHIFT & _LEVEL_MASK
            run.kinds, run.table, block = decode_kinds(
                block, count, persistent=attributes.persistent, level=level
            )
        if not ids & _WITH_MESSAGE_IDS:
            if flags & _WITH_LETTER:
                return "enqueue_letter", run, publisher, first, Letter(*_LETTER.unpack(block))
            if not flags & (_WITH_IDS | _WITH_SEQUENCE):
                return "enqueue", run, publisher, first
            return "enqueue_once", run, publisher, first, _decode_names(flags, block, count)
        (size,) = _NAMES.unpack_from(block)
        names, rest = block[4 : 4 + size], block[min(4 + size, len(block)) :]
        # Nothing if no message has an id.
        message_ids = unframed(rest, count) if rest else []
        if flags & _WITH_LETTER:
            return "enqueue_letter", run, publisher, first, Letter(*_LETTER.unpack(names)), message_ids
        if not flags & (_WITH_IDS | _WITH_SEQUENCE):
            return "enqueue_known", run, publisher, first, message_ids
        return "enqueue_known", run, publisher, first, message_ids, _decode_names(flags, names, count)

    def _take(self, count: int) -> bytes:
        end = self._offset + count
        if end > len(self._data):
            raise CodecError("a batch ends inside a command")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken

    def _consumer(self) -> Command:
        verb, number, flags, prefetch, limit, priority, next_id = _ATTACH.unpack_from(
            self._data, self._offset
        )
        self._offset += _ATTACH.size
        key = self._keys[number]
        position = due_ms = 0
        if flags & _PICKS and verb == _V_GET:
            position, prefetch, due_ms, limit = prefetch, 0, limit, 0
        consumer = Consumer(
            key,
            no_ack=bool(flags & _NO_ACK),
            prefetch=prefetch,
            priority=priority,
            exclusive=bool(flags & _EXCLUSIVE),
            channel=key[:CHANNEL_FIELDS],
            window_limit=limit,
            position=position,
            due_ms=due_ms,
        )
        consumer.paused = bool(flags & _PAUSED)
        consumer.next_id = next_id
        consumer.attached = verb == _V_ATTACH
        return "attach" if verb == _V_ATTACH else "get", consumer

    def _rare(self, verb: int) -> Command:
        if verb == _V_CONFIGURE:
            return "configure", _settings_decoder.decode(self._blob())
        if verb == _V_PREPARE:
            return "prepare", *_prepare_decoder.decode(self._blob())
        if verb == _V_RESOLVE:
            return "resolve", *_resolve_decoder.decode(self._blob())
        if verb not in (_V_PURGE, _V_DEAD_LETTERED, _V_NODE_DOWN, _V_VERSION, _V_LOSE, _V_SEAL, _V_STATUS):
            raise CodecError(f"no command has the number {verb}")
        _, first, second = _NUMBERS.unpack_from(self._data, self._offset)
        self._offset += _NUMBERS.size
        if verb == _V_PURGE:
            return "purge", first - 1 if first else None
        if verb == _V_SEAL:
            if second > CONDITIONS_MAX:
                raise CodecError(f"no condition of a seal has the number {second}")
            return "seal", first - 1 if first else None, second
        if verb == _V_VERSION:
            if first > versions.NEWEST:
                raise CodecError(
                    f"from here on the queue has version {first}, this mqd knows {versions.NEWEST}"
                )
            return "version", first
        if verb == _V_STATUS:
            return "status", first, self._take(second)
        if verb == _V_DEAD_LETTERED:
            return "dead_lettered", first, second
        if verb == _V_LOSE:
            return "lose", first, second
        return "node_down", self._take(second).decode(), first
