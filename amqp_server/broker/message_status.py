"""What became of a message: the question to the queues of a vhost that keep a record, and its answer.

Clients ask over AMQP by a message to the queue QUEUE, which only exists as a routing key of the default
exchange, and get the answer as a direct reply; operators ask over HTTP. Both get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from amqp_server.broker.access.http_permissions import AnswerAwaited
from amqp_server.broker.questions.answering import QUESTION_BYTES_MAX, Answer, refusal, send_answer
from amqp_server.broker.reply import DirectTarget
from amqp_server.errors import AccessRefused, AMQPError, NotFound, PreconditionFailed
from amqp_server.wire import content
from amqp_server.wire.frames import SHORT_STRING_MAX
from quorum_queue.machine.record.states import ABORTED, DUPLICATE, REASONS, STATES, Copy, Found
from quorum_queue.machine.run import Run
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.reply import Replies
    from amqp_server.broker.topology.parts import BrokerParts
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.broker.topology.vhost import VHost

#: States of messages of a transaction that the queue has not taken.
_CAME_TO_NOTHING: Final = frozenset((STATES[DUPLICATE], STATES[ABORTED]))
#: Where clients send their questions.
QUEUE: Final = "amq.mqd.message-status"


class Asked(msgspec.Struct):
    """A question in JSON."""

    message_id: str
    #: Empty: all queues that keep a record and that the user may read.
    queue: str = ""
    #: True if the id is given by its bytes, in hexadecimal digits: ids need not be text.
    hex: bool = False


def id_of(text: str, *, hex: bool) -> bytes:
    """Return the bytes of an id. Raises PreconditionFailed."""
    try:
        found = bytes.fromhex(text) if hex else text.encode()
    except (ValueError, UnicodeEncodeError):
        raise PreconditionFailed(
            "message_id is not in hexadecimal digits" if hex else "message_id is no text"
        ) from None
    if not 0 < len(found) <= SHORT_STRING_MAX:
        raise PreconditionFailed(
            f"message_id has {len(found)} bytes, and that of a message has 1 to {SHORT_STRING_MAX}"
        )
    return found


class Statuses:
    """Asks the queues of the broker."""

    def __init__(self, parts: BrokerParts, replies: Replies) -> None:
        self.parts = parts
        self.replies = replies
        #: The queues of each vhost that keep a record, as long as the topology stays as it is.
        self._generation = -1
        self._recording: dict[str, list[Queue]] = {}

    def target(self, vhost: VHost, client: Asker) -> StatusTarget:
        """Return the target of a client's questions."""
        return StatusTarget(self, vhost, client)

    def _recording_in(self, vhost: VHost) -> list[Queue]:
        generation = self.parts.generation()
        if generation != self._generation:
            self._generation, self._recording = generation, {}
        found = self._recording.get(vhost.name)
        if found is None:
            found = [each for each in vhost.queues.values() if each.settings.records]
            self._recording[vhost.name] = found
        return found

    def ask(
        self, vhost: VHost, access: str, message_id: bytes, queue: str, done: Callable[[Answer], None]
    ) -> None:
        """Ask the queue, or all that keep a record and that this user may read; `done` gets the answer now
        or later. Raises AccessRefused, NotFound, PreconditionFailed, AnswerAwaited.
        """
        permissions, left_out = self.parts.access.permissions, 0
        if queue:
            # Before anything else: the refusal is the same whether the queue exists or not.
            permissions.check(access, vhost.name, "queue", queue, "read")
            named = vhost.queues.get(queue)
            if named is None:
                raise NotFound(f"no queue '{queue}' in vhost '{vhost.name}'")
            if not named.settings.records:
                raise PreconditionFailed(
                    f"queue '{queue}' in vhost '{vhost.name}' keeps no record of messages"
                )
            queues = [named]
        else:
            queues = []
            awaited: list[AnswerAwaited] = []
            for each in self._recording_in(vhost):
                try:
                    permissions.check(access, vhost.name, "queue", each.name, "read")
                except AccessRefused:
                    continue
                except AnswerAwaited as one:
                    awaited.append(one)
                    continue
                queues.append(each)
            if awaited:
                raise awaited[0].with_(awaited[1:])
            most = self.parts.config.message_status_queues_max
            left_out = max(0, len(queues) - most)
            queues = queues[:most]
        node = self.parts.config.node
        _Round(node, vhost, message_id, queues, left_out, done, named=bool(queue)).begin()


class _Round:
    """One question to several queues."""

    def __init__(
        self,
        node: str,
        vhost: VHost,
        message_id: bytes,
        queues: list[Queue],
        left_out: int,
        done: Callable[[Answer], None],
        *,
        named: bool,
    ) -> None:
        self._node = node
        self._vhost = vhost
        self._id = message_id
        self._queues = queues
        self._left_out = left_out
        self._done = done
        self._named = named
        self._found: dict[str, Found | Refused] = {}

    def begin(self) -> None:
        if not self._queues:
            self._done(self._answer())
            return
        for queue in self._queues:
            queue.host.message_status(self._id, self._taker(queue))

    def _taker(self, queue: Queue) -> Callable[[Found | Refused], None]:
        def take(found: Found | Refused) -> None:
            if queue.name not in self._found:
                self._found[queue.name] = found
                if len(self._found) == len(self._queues):
                    self._done(self._answer())

        return take

    def _answer(self) -> Answer:
        told: list[Answer] = []
        since_ms, failed = 0, []
        for queue in self._queues:
            found = self._found[queue.name]
            if isinstance(found, Refused):
                if not queue.deleted:
                    failed.append({"queue": queue.name, "reason": found.text})
                continue
            since_ms = max(since_ms, found.since_ms)
            if found.copies or found.note is not None or self._named:
                told.append(_told(queue, found, self._node))
        text = self._id.decode(errors="replace")
        answer: Answer = {"message_id": text, "vhost": self._vhost.name}
        if text.encode() != self._id:
            answer["message_id_hex"] = self._id.hex()
        return answer | {
            "known": any(each["state"] != "unknown" for each in told),
            "recorded_since_ms": since_ms,
            "asked": len(self._queues),
            "left_out": self._left_out,
            "queues": told,
            "failed": failed,
        }


def _told(queue: Queue, found: Found, node: str) -> Answer:
    """Return what a queue knows as an object of JSON; the newest message of the id comes first."""
    note, messages = found.note, [_message(copy, node) for copy in reversed(found.copies)]
    state, reason = "unknown", ""
    if messages:
        # A later attempt that came to nothing does not hide the message that the queue took before.
        newest = next((each for each in messages if each["state"] not in _CAME_TO_NOTHING), messages[0])
        state, reason = newest["state"], newest["reason"]
    elif note is not None:
        state, reason = STATES[note.state], REASONS[note.reason]
    not_taken = None
    if note is not None:
        not_taken = {
            "state": STATES[note.state],
            "reason": REASONS[note.reason],
            "times": note.times,
            "last_ms": note.last_ms,
        }
    return {
        "queue": queue.name,
        "type": queue.type.name,
        "state": state,
        "reason": reason,
        "recorded_since_ms": found.since_ms,
        "messages": messages,
        "not_taken": not_taken,
    }


def _message(copy: Copy, node: str) -> Answer:
    told: Answer = {
        "state": STATES[copy.state],
        "reason": REASONS[copy.reason],
        "position": copy.position,
        "queued_ms": copy.queued_ms,
        "changed_ms": copy.changed_ms,
        "deliveries": copy.deliveries,
        "consumer": None,
        "dead_letter_exchange": None,
        "dead_letter_routing_key": None,
    }
    if copy.consumer is not None:
        key = copy.consumer
        told["consumer"] = {
            "node": key[0] if len(key) > 4 else node,
            # None: it came by basic.get.
            "consumer_tag": key[-2],
            "channel": key[-3],
            "connection_number": key[-4],
        }
    if copy.letter_to is not None:
        told["dead_letter_exchange"] = copy.letter_to[0]
        told["dead_letter_routing_key"] = copy.letter_to[1] or None
    return told


class Asker(Protocol):
    @property
    def access(self) -> str:
        """The name under which the permissions of the client are looked up."""


class StatusTarget(DirectTarget):
    """Answers the questions of one channel."""

    def __init__(self, statuses: Statuses, vhost: VHost, client: Asker) -> None:
        super().__init__(QUEUE, statuses.parts.turn)
        self._statuses = statuses
        self._vhost = vhost
        self._client = client

    def apply_pending(self) -> None:
        turn = self._turn
        while self.pending:
            verb, run, origin, first = self.pending.pop(0)
            for at, item in enumerate(run.contents):
                if at and turn.overdue():
                    rest = run.contents[at:]
                    more = Run(range(len(rest)), rest, run.head, run.attributes, None, sum(map(len, rest)))
                    self.pending.insert(0, (verb, more, origin, first + at))
                    break
                self._question(item)
                if origin is not None:
                    origin.confirmed(first + at, first + at)
            if self.pending and turn.overdue():
                turn.later(self, self.apply_pending)
                return

    def failed(self, error: Exception) -> None:
        """Nothing is kept here that could be wrong."""
        self.pending = []

    def _question(self, item: bytes) -> None:
        payload, body = content.split(item)
        properties = content.Properties.parse(payload, checked=True)
        reply_to = properties.text("reply_to")
        if not reply_to:
            return

        def reply(answer: Answer) -> None:
            self._reply(reply_to, properties.raw.get("correlation_id"), answer)

        try:
            if len(body) > QUESTION_BYTES_MAX:
                raise PreconditionFailed(f"a question has at most {QUESTION_BYTES_MAX} bytes")
            try:
                asked = msgspec.json.decode(body, type=Asked)
            except (msgspec.MsgspecError, UnicodeDecodeError) as failure:
                raise PreconditionFailed(f"the question is not as documented: {failure}") from None
            self._ask(asked, reply)
        except AMQPError as error:
            reply(refusal(error))

    def _ask(self, asked: Asked, reply: Callable[[Answer], None]) -> None:
        message_id = id_of(asked.message_id, hex=asked.hex)

        def again() -> None:
            awaited.settle()
            try:
                self._ask(asked, reply)
            except AMQPError as error:
                reply(refusal(error))

        try:
            self._statuses.ask(self._vhost, self._client.access, message_id, asked.queue, reply)
        except AnswerAwaited as one:
            awaited = one
            one.begin(again)

    def _reply(self, reply_to: str, correlation_id: bytes | None, answer: Answer) -> None:
        statuses = self._statuses
        send_answer(statuses.parts, statuses.replies, reply_to, correlation_id, answer)
