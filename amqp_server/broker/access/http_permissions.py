"""Permissions that another server grants, one question at a time, as with RabbitMQ's
rabbitmq_auth_backend_http.

A user that this server has accepted has no patterns here: the server decides whether the user may use a
queue. Its answers are kept for a while. If an answer is missing, the check raises AnswerAwaited; the caller
waits for the answer and checks again. A client's method is then repeated; it has changed nothing yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from amqp_server.broker.access.token_permissions import Grant
from amqp_server.broker.awaited import Awaited

#: As the first scope, marks a grant of the other server: the following scopes are the client's address and
#: the user's tags. No scope of a token has a NUL.
ASKED: Final = "\0asked"
#: The expiry of a grant whose answers no memo uses.
NEVER_MS: Final = 1 << 62


class Question(NamedTuple):
    #: `vhost`, `resource` or `topic`.
    path: str
    parameters: tuple[tuple[str, str], ...]


#: Asks the server; the function is called with the answer, never before this call returns.
Ask = Callable[[Question, Callable[[bool], None]], None]


class AnswerAwaited(Awaited):
    """One permission or several whose answers have not arrived yet."""

    def __init__(self, grant: RemoteGrant, questions: tuple[Question, ...]) -> None:
        super().__init__(questions)
        self._grant = grant
        self.questions = questions

    def with_(self, others: Sequence[AnswerAwaited]) -> AnswerAwaited:
        """Return an exception that also awaits the answers to other questions about the same user."""
        questions = list(self.questions)
        for other in others:
            questions += other.questions
        return AnswerAwaited(self._grant, tuple(dict.fromkeys(questions)))

    def begin(self, done: Callable[[], None]) -> None:
        """Ask; `done` is called when the caller should check again."""
        self._grant.ask_all(self.questions, done)

    def settle(self) -> None:
        """The waiting work is done, or has failed."""
        self._grant.settle()


class BackendAnswers:
    """Answers of the other server, each kept while it is valid. All clients share them."""

    def __init__(self, now_ms: Callable[[], int], cache_ms: int, entries_max: int) -> None:
        self.now_ms = now_ms
        self.cache_ms = cache_ms
        self._entries_max = entries_max
        #: Answers by question, each with the time until which it is valid, oldest first.
        self._known: OrderedDict[Question, tuple[bool, int]] = OrderedDict()
        #: Function of the edge that asks the server; None: no question can be asked, and nothing is
        #: permitted.
        self.asks: Ask | None = None

    def recall(self, question: Question) -> tuple[bool, int] | None:
        """Return a valid answer, with the time until which it is valid."""
        known = self._known.get(question)
        if known is None or known[1] <= self.now_ms():
            return None
        return known

    def remember(self, question: Question, allowed: bool) -> None:
        self._known[question] = allowed, self.now_ms() + self.cache_ms
        self._known.move_to_end(question)
        while len(self._known) > self._entries_max:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)


class RemoteGrant:
    """Permissions of one login of a user of the other server. Has the methods of grants.Grant; they raise
    AnswerAwaited.
    """

    def __init__(self, answers: BackendAnswers, user: str, scopes: Sequence[str]) -> None:
        """`scopes` begin with ASKED and the address of the client."""
        self._answers = answers
        self._user = user
        self._peer = scopes[1] if len(scopes) > 1 else ""
        self.tags = Grant(scopes[2:]).tags
        #: Fields that every question has.
        self._joined = " ".join(self.tags)
        #: Answers for the waiting method: they are valid until it is done, even if they expire earlier.
        self._given: dict[Question, bool] = {}
        #: The first expiry of the answers that were used since the last `forgotten`.
        self.until_ms = NEVER_MS

    def may_open(self, vhost: str) -> bool:
        parameters = (("username", self._user), ("vhost", vhost), ("ip", self._peer), ("tags", self._joined))
        return self._allowed(Question("vhost", parameters))

    def allows(self, vhost: str, name: str, access: str, kind: str) -> bool:
        return self._allowed(Question("resource", self._resource(vhost, kind, name, access)))

    def allows_key(self, vhost: str, exchange: str, key: str, access: str) -> bool:
        """True if this routing key of a topic exchange is permitted."""
        parameters = (
            *self._resource(vhost, "topic", exchange, access),
            ("routing_key", key),
            ("variable_map.username", self._user),
            ("variable_map.vhost", vhost),
        )
        return self._allowed(Question("topic", parameters))

    def _resource(self, vhost: str, kind: str, name: str, access: str) -> tuple[tuple[str, str], ...]:
        return (
            ("username", self._user),
            ("vhost", vhost),
            ("resource", kind),
            ("name", name),
            ("permission", access),
            ("tags", self._joined),
        )

    def _allowed(self, question: Question) -> bool:
        given = self._given.get(question)
        if given is not None:
            return given
        known = self._answers.recall(question)
        if known is None:
            if self._answers.asks is None:
                return False
            raise AnswerAwaited(self, (question,))
        self._used(known[1])
        return known[0]

    def _used(self, until_ms: int) -> None:
        self.until_ms = min(self.until_ms, until_ms)

    def ask_all(self, questions: tuple[Question, ...], done: Callable[[], None]) -> None:
        left = len(questions)

        def answered() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for question in questions:
            self._ask(question, answered)

    def _ask(self, question: Question, done: Callable[[], None]) -> None:
        asks = self._answers.asks
        assert asks is not None

        def answered(allowed: bool) -> None:
            self._given[question] = allowed
            self._used(self._answers.now_ms() + self._answers.cache_ms)
            done()

        asks(question, answered)

    def settle(self) -> None:
        """No method waits any more."""
        self._given.clear()

    def is_stale(self) -> bool:
        """True if a memo may depend on an answer that has expired."""
        return self._answers.now_ms() >= self.until_ms

    def forgotten(self) -> None:
        """All memos that depend on answers were cleared."""
        self.until_ms = NEVER_MS
