"""Messages that wait in a queue are cancelled by their ids: what clients ask for, until the node has done it.

Clients ask by a message to the queue QUEUE, which only exists as a routing key of the default exchange. Its
confirm is the answer: an ack if at least one message was cancelled, a nack if none was. Who wants to know
more gets a direct reply. The search takes many turns, so a task of the node does it (see
management.messages.cancelling); here is what waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from amqp_server.broker.access.http_permissions import AnswerAwaited
from amqp_server.broker.message_status import id_of
from amqp_server.broker.questions.answering import QUESTION_BYTES_MAX, Answer, refusal, send_answer
from amqp_server.broker.reply import DirectTarget
from amqp_server.errors import AMQPError, NotFound, PreconditionFailed
from amqp_server.wire import content
from quorum_queue.machine import versions

if TYPE_CHECKING:
    from amqp_server.broker.message_status import Asker
    from amqp_server.broker.reply import Replies
    from amqp_server.broker.topology.parts import BrokerParts
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.broker.topology.vhost import VHost

#: Where clients send their requests.
QUEUE: Final = "amq.mqd.cancel"
#: Requests of all clients of a node that wait; more are refused.
WAITING_MAX: Final = 10_000
#: Requests for one queue that one search answers.
TOGETHER_MAX: Final = 100


class Asked(msgspec.Struct):
    """A request in JSON."""

    queue: str
    message_id: str
    #: True if the id is given by its bytes, in hexadecimal digits: ids need not be text.
    hex: bool = False


class Request(NamedTuple):
    queue: Queue
    message_id: bytes
    #: Gets the answer, in a turn.
    done: Callable[[Answer], None]


class Cancels:
    """The requests of this node's clients."""

    def __init__(self, parts: BrokerParts, replies: Replies) -> None:
        self.parts = parts
        self.replies = replies
        self.waiting: deque[Request] = deque()
        #: Called when there are requests; set by the composition root.
        self.begin: Callable[[], None] = _nobody

    def target(self, vhost: VHost, client: Asker) -> CancelTarget:
        """Return the target of a client's requests."""
        return CancelTarget(self, vhost, client)

    def ask(
        self, vhost: VHost, access: str, message_id: bytes, queue: str, done: Callable[[Answer], None]
    ) -> None:
        """Cancel messages that wait; `done` gets their number in a later turn. Raises AccessRefused,
        NotFound, PreconditionFailed, AnswerAwaited.
        """
        # Before anything else: the refusal is the same whether the queue exists or not.
        self.parts.access.permissions.check(access, vhost.name, "queue", queue, "read")
        named = vhost.queues.get(queue)
        if named is None:
            raise NotFound(f"no queue '{queue}' in vhost '{vhost.name}'")
        if named.type.is_stream or named.type.is_group:
            raise PreconditionFailed(f"no message waits in queue '{queue}': it is no classic or quorum queue")
        if self.parts.replication.version < versions.CANCELS:
            raise PreconditionFailed(
                "not all nodes of the cluster run a version of mqd that cancels messages"
            )
        if len(self.waiting) >= WAITING_MAX:
            raise PreconditionFailed(f"{WAITING_MAX} requests wait already; try again")
        self.waiting.append(Request(named, message_id, done))
        self.begin()

    def take(self) -> list[Request]:
        """Take requests for one queue, the oldest among them, for one search."""
        taken: list[Request] = []
        left: deque[Request] = deque()
        while self.waiting and len(taken) < TOGETHER_MAX:
            request = self.waiting.popleft()
            (taken if not taken or request.queue is taken[0].queue else left).append(request)
        left.extend(self.waiting)
        self.waiting = left
        return taken


def _nobody() -> None:
    """Requests wait for a node that has no task for them, such as one of a test."""


class CancelTarget(DirectTarget):
    """Takes the requests of one channel."""

    def __init__(self, cancels: Cancels, vhost: VHost, client: Asker) -> None:
        super().__init__(QUEUE, cancels.parts.turn)
        self._cancels = cancels
        self._vhost = vhost
        self._client = client

    def apply_pending(self) -> None:
        commands, self.pending = self.pending, []
        for _, run, origin, first in commands:
            for at, item in enumerate(run.contents):
                self._request(item, origin, first + at)

    def failed(self, error: Exception) -> None:
        """Nothing is kept here that could be wrong."""
        self.pending = []

    def _request(self, item: bytes, origin: Any, number: int) -> None:
        payload, body = content.split(item)
        properties = content.Properties.parse(payload, checked=True)
        reply_to = properties.text("reply_to")
        if origin is not None and getattr(origin, "of_commit", False):
            # A commit neither waits for a search, nor fails because it finds nothing.
            origin.confirmed(number, number)
            origin = None

        def done(answer: Answer) -> None:
            if reply_to:
                cancels = self._cancels
                correlation_id = properties.raw.get("correlation_id")
                send_answer(cancels.parts, cancels.replies, reply_to, correlation_id, answer)
            if origin is not None:
                (origin.confirmed if answer.get("cancelled") else origin.refused)(number, number)

        try:
            if len(body) > QUESTION_BYTES_MAX:
                raise PreconditionFailed(f"a request has at most {QUESTION_BYTES_MAX} bytes")
            try:
                asked = msgspec.json.decode(body, type=Asked)
            except (msgspec.MsgspecError, UnicodeDecodeError) as failure:
                raise PreconditionFailed(f"the request is not as documented: {failure}") from None
            self._ask(asked, done)
        except AMQPError as error:
            done(refusal(error))

    def _ask(self, asked: Asked, done: Callable[[Answer], None]) -> None:
        message_id = id_of(asked.message_id, hex=asked.hex)

        def again() -> None:
            awaited.settle()
            try:
                self._ask(asked, done)
            except AMQPError as error:
                done(refusal(error))

        try:
            self._cancels.ask(self._vhost, self._client.access, message_id, asked.queue, done)
        except AnswerAwaited as one:
            awaited = one
            one.begin(again)


__all__ = ["QUEUE", "CancelTarget", "Cancels", "Request"]
