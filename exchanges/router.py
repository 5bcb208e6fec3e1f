"""The exchanges and bindings of one vhost, and the routing of messages."""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from exchanges.binding import Binding, DestinationKind
from exchanges.errors import InvalidArgument, RoutingTooLong, UnknownExchangeType
from exchanges.field import type_name
from exchanges.local_random import anywhere
from exchanges.matcher import Depends, Destinations, Matcher, Message
from exchanges.registry import PREDECLARED, create_matcher, routing_type
from exchanges.super_stream import left_in_run
from exchanges.topic import TopicMatcher

__all__ = [
    "Depends",
    "Exchange",
    "InvalidArgument",
    "Route",
    "Router",
    "RoutingTooLong",
    "UnknownExchangeType",
    "Walk",
    "walked",
]

#: Steps of a walk that no caller interrupts: half a millisecond at most.
AT_ONCE: Final = 480
#: Destinations that an exchange names at once and that count as one more step.
_NAMED_IN_A_STEP: Final = 64
_NO_ARGUMENTS: Mapping[str, object] = {}
_KEY = Depends.KEY
K = TypeVar("K", bound=Hashable)


class Exchange:
    __slots__ = (
        "alternate",
        "arguments",
        "auto_delete",
        "durable",
        "internal",
        "matcher",
        "name",
        "predeclared",
        "published_in",
        "published_out",
        "routing_type",
        "type",
    )

    def __init__(self, name: str, type: str, matcher: Matcher, arguments: Mapping[str, object]) -> None:
        self.name = name
        self.type = type
        #: The type by which it routes: another one only for x-delayed-message. What bindings and routing keys
        #: may be depends on this one.
        self.routing_type = routing_type(type, arguments)
        self.matcher = matcher
        self.arguments = arguments
        self.durable = False
        self.auto_delete = False
        self.internal = False
        self.predeclared = False
        self.alternate: str | None = None
        #: Messages published to it, and copies that queues got; counted by the publisher's code.
        self.published_in = 0
        self.published_out = 0


class Route(NamedTuple):
    queues: tuple[str, ...]
    #: What the exchanges on this way have looked at. For equal values of that, the way is the same, however
    #: other messages go.
    depends: Depends
    #: If it depends on the nonce: for so many nonces after the given one the way is the same.
    ahead: int = 0


NOWHERE = Route((), _KEY)


class Walk:
    """The way of one message: from an exchange along bindings to exchanges, and to the alternates of
    exchanges without a match. Each exchange is visited once.

    A long way is interrupted: `go_on` takes so many steps. One step asks one exchange about one key. The
    number of all steps is limited, because chains of exchanges and lists of keys are cheap to make, and so is
    the number of alternates. If the topology changes between two steps, each exchange answers as of the
    moment when it is asked.
    """

    __slots__ = (
        "_alternates_left",
        "_at",
        "_depends",
        "_keys",
        "_matched",
        "_message",
        "_nonce",
        "_number",
        "_parts",
        "_pending",
        "_queues",
        "_router",
        "_seen",
        "_visited",
        "done",
        "steps",
    )

    def __init__(
        self,
        router: "Router",
        start: str,
        keys: Sequence[str],
        message: Message | None,
        nonce: int,
    ) -> None:
        self._router = router
        self._keys = keys
        self._message = message
        self._nonce = nonce
        #: The exchange that is asked; None between two exchanges.
        self._at: Exchange | None = None
        #: What an exchange with very many bindings answers, in parts.
        self._parts: Iterator[Sequence[Destinations]] | None = None
        #: The number of the next key to ask it about, and whether any key before has matched.
        self._number = 0
        self._matched = False
        self._queues: dict[str, int] = {}
        self._depends = _KEY
        self._visited: dict[str, None] = {}
        self._pending = [start]
        #: The destinations that several keys of a message have led to.
        self._seen: dict[Destinations, None] = {}
        self._alternates_left = router.alternates_max
        self.steps = 0
        self.done = False
        self._next()

    @property
    def route(self) -> Route:
        """The result of a walk that is done."""
        depends = self._depends
        return Route(tuple(self._queues), depends if depends is _KEY else _told(depends, self._keys[0]))

    def finish(self) -> Route:
        """Take all steps. Raises RoutingTooLong."""
        while not self.go_on(AT_ONCE):
            pass
        return self.route

    def go_on(self, steps: int) -> bool:
        """Take so many steps, or a few more; return True if the walk is done. Raises RoutingTooLong."""
        until = self.steps + steps
        while not self.done and self.steps < until:
            exchange = self._at
            if exchange is None:
                self._next()
            elif self._parts is not None:
                part = next(self._parts, None)
                if part is None:
                    self._parts = None
                    self._end_of_key(exchange)
                else:
                    self._add(part)
                    self.steps += 1
            else:
                key, matcher = self._keys[self._number], exchange.matcher
                if isinstance(matcher, TopicMatcher) and matcher.large:
                    self._parts = matcher.parts(key)
                else:
                    self.take(matcher.match(key, self._message, self._nonce))
        if self.steps > self._router.steps_max:
            raise RoutingTooLong(self._router.steps_max)
        return self.done

    def take(self, matched: Sequence[Destinations]) -> None:
        """Take what the exchange answers about a key."""
        exchange = self._at
        assert exchange is not None
        self.steps += 1
        self._add(matched)
        self._end_of_key(exchange)

    def _add(self, matched: Sequence[Destinations]) -> None:
        several = len(self._keys) > 1
        for destinations in matched:
            if several:
                if destinations in self._seen:
                    continue
                self._seen[destinations] = None
            self._queues.update(destinations.queues)
            if destinations.exchanges:
                self._pending.extend(destinations.exchanges)
            self.steps += len(destinations) // _NAMED_IN_A_STEP
        if matched:
            self._matched = True
            self.steps += len(matched) // _NAMED_IN_A_STEP

    def _end_of_key(self, exchange: Exchange) -> None:
        self._number += 1
        if self._number < len(self._keys) and exchange.matcher.wants_all_keys:
            return
        if not self._matched and exchange.alternate is not None and self._alternates_left:
            self._alternates_left -= 1
            self._pending.append(exchange.alternate)
        self._at = None
        if not self._pending:
            self.done = True

    def _next(self) -> None:
        """Go to the next exchange that was not visited yet."""
        self.steps += 1
        name = self._pending.pop()
        if name not in self._visited:
            following = self._router.get(name)
            if not name:
                self._visited[name] = None
                has_queue, keys = self._router.has_queue, self._keys
                self._queues.update([(key, 1) for key in keys if has_queue(key)])
                self.steps += len(keys) // _NAMED_IN_A_STEP
            elif following is not None:
                self._visited[name] = None
                self._at = following
                self._number = 0
                self._matched = False
                if following.matcher.depends is not _KEY:
                    self._depends |= following.matcher.depends
                return
        if not self._pending:
            self.done = True


def walked(walk: Walk, steps: int = AT_ONCE) -> Generator[None, None, Route]:
    """Take the steps of a walk, so many at each step of this iterator. Raises RoutingTooLong."""
    while not walk.go_on(steps):
        yield
    return walk.route


class Router:
    def __init__(
        self,
        has_queue: Callable[[str], bool],
        *,
        is_here: Callable[[str], bool] = anywhere,
        vhost: str = "/",
        any_words_max: int = 16,
        alternates_max: int = 1_000,
        steps_max: int = 1_000_000,
    ) -> None:
        self.has_queue = has_queue
        #: Whether a queue is on this node.
        self._is_here = is_here
        self._vhost = vhost
        self._any_words_max = any_words_max
        #: Most alternate exchanges that one message goes to.
        self.alternates_max = alternates_max
        #: Most steps of one walk.
        self.steps_max = steps_max
        self._exchanges: dict[str, Exchange] = {}
        self._from: dict[str, dict[Binding, None]] = {}
        self._to: dict[DestinationKind, dict[str, dict[Binding, None]]] = {"queue": {}, "exchange": {}}
        # For each exchange, the exchanges bound to it, with the number of bindings.
        self._neighbours: dict[str, dict[str, int]] = {}

    def predeclare(self) -> None:
        for name, exchange_type, internal in PREDECLARED:
            self.declare(name, exchange_type, durable=True, internal=internal, predeclared=True)

    def declare(
        self,
        name: str,
        type: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] = _NO_ARGUMENTS,
        predeclared: bool = False,
    ) -> Exchange:
        """Return the exchange; make it if it does not exist. The caller checks that its properties are as
        requested.
        """
        existing = self._exchanges.get(name)
        if existing is not None:
            return existing
        alternate = arguments.get("alternate-exchange")
        exchange = Exchange(name, type, self._matcher_of(type, arguments), arguments)
        if "alternate-exchange" in arguments and not isinstance(alternate, str):
            raise InvalidArgument(
                f"invalid type '{type_name(alternate)}' for arg 'alternate-exchange' "
                f"in exchange '{name}' in vhost '{self._vhost}'"
            )
        exchange.durable = durable
        exchange.auto_delete = auto_delete
        exchange.internal = internal
        exchange.predeclared = predeclared
        exchange.alternate = alternate if isinstance(alternate, str) else None
        self._exchanges[name] = exchange
        return exchange

    def _matcher_of(self, type: str, arguments: Mapping[str, object]) -> Matcher:
        return create_matcher(type, arguments, self._any_words_max, self._is_here)

    def set_alternate(self, name: str, alternate: str | None) -> bool:
        """Give an exchange an alternate, or none; a declared alternate stays. Return True if its alternate
        has changed.
        """
        exchange = self._exchanges[name]
        if "alternate-exchange" in exchange.arguments or exchange.alternate == alternate:
            return False
        exchange.alternate = alternate
        return True

    @property
    def exchange_count(self) -> int:
        return len(self._exchanges)

    def count_from(self, source: str) -> int:
        """Return how many bindings lead away from an exchange."""
        return len(self._from.get(source, ()))

    def get(self, name: str) -> Exchange | None:
        return self._exchanges.get(name)

    def exchanges(self) -> Iterable[Exchange]:
        return self._exchanges.values()

    def delete(self, name: str) -> tuple[list[Binding], list[str]]:
        """Remove an exchange with its bindings on both sides. Return all removed bindings, and the
        auto-delete exchanges that were removed with them.
        """
        if name not in self._exchanges:
            return [], []
        removed = self._delete(name)
        return self._delete_unused(removed)

    def has(self, binding: Binding) -> bool:
        return binding in self._from.get(binding.source, ())

    def bind(self, binding: Binding) -> bool:
        if binding.kind == "exchange" and binding.destination not in self._exchanges:
            raise KeyError(binding.destination)
        source = self._exchanges[binding.source]
        bindings = self._from.setdefault(binding.source, {})
        if binding in bindings:
            return False
        source.matcher.bind(binding)
        bindings[binding] = None
        self._to[binding.kind].setdefault(binding.destination, {})[binding] = None
        if binding.kind == "exchange":
            counts = self._neighbours.setdefault(binding.source, {})
            counts[binding.destination] = counts.get(binding.destination, 0) + 1
        return True

    def unbind(self, binding: Binding) -> tuple[list[Binding], list[str]]:
        """Return all removed bindings, and the auto-delete exchanges that
        were removed with their last one.
        """
        if not self.has(binding):
            return [], []
        self._remove(binding)
        return self._delete_unused([binding])

    def remove_queue(self, queue: str) -> tuple[list[Binding], list[str]]:
        """Like `unbind`, for all bindings of a queue."""
        removed = list(self._to["queue"].get(queue, ()))
        for binding in removed:
            self._remove(binding)
        return self._delete_unused(removed)

    def bindings(
        self,
        *,
        source: str | None = None,
        destination: str | None = None,
        kind: DestinationKind | None = None,
    ) -> list[Binding]:
        if source is not None:
            candidates: Iterable[Binding] = self._from.get(source, ())
        elif destination is not None and kind is not None:
            candidates = self._to[kind].get(destination, ())
        else:
            candidates = (binding for bindings in self._from.values() for binding in bindings)
        return [
            binding
            for binding in candidates
            if (destination is None or binding.destination == destination)
            and (kind is None or binding.kind == kind)
        ]

    def bindings_of(self, kind: DestinationKind, name: str) -> list[Binding]:
        """Return the bindings that are removed with a queue or an exchange:
        those to it, and those from it.
        """
        found = list(self._to[kind].get(name, ()))
        if kind == "exchange":
            found += [
                binding
                for binding in self._from.get(name, ())
                if binding.destination != name or binding.kind != kind
            ]
        return found

    def bindings_from(self, source: str) -> list[Binding]:
        """Return the bindings that lead away from an exchange."""
        return list(self._from.get(source, ()))

    def cascade(self, removed: Iterable[Binding]) -> Iterator[str | None]:
        """Find the auto-delete exchanges that go if these bindings are removed, in the order in which
        `unbind` deletes them; a step may find none.
        """
        gone: dict[str, None] = {}
        left: dict[str, int] = {}
        bindings = deque(removed)
        while bindings:
            name = bindings.popleft().source
            exchange = self._exchanges.get(name)
            if exchange is None or not exchange.auto_delete or name in gone:
                yield None
                continue
            left[name] = left.get(name, self.count_from(name)) - 1
            if left[name]:
                yield None
                continue
            gone[name] = None
            bindings.extend(self._to["exchange"].get(name, ()))
            yield name

    @property
    def binding_count(self) -> int:
        return sum(map(len, self._from.values()))

    def reachable_queues(self, exchange: str) -> Generator[None, None, list[str] | None]:
        """Find the queues that bindings lead to from an exchange, through other exchanges and alternates,
        too, a part at each step of the iterator.

        None stands for all queues, if the default exchange is reached.
        """
        queues: dict[str, None] = {}
        visited: dict[str, None] = {exchange: None}
        pending = [exchange]
        done = 0
        while pending:
            name = pending.pop()
            found = self._exchanges.get(name)
            if found is None:
                continue
            if not name:
                return None
            following = list(self._neighbours.get(name, ()))
            if found.alternate is not None:
                following.append(found.alternate)
            for each in following:
                if each not in visited:
                    visited[each] = None
                    pending.append(each)
            # A copy: bindings may change between two steps.
            for binding in list(self._from.get(name, ())):
                if binding.kind == "queue":
                    queues[binding.destination] = None
                done += 1
                if done % AT_ONCE == 0:
                    yield
            done += 1
            if done % AT_ONCE == 0:
                yield
        return list(queues)

    def in_use(self, name: str) -> bool:
        return bool(self._from.get(name))

    def route(self, exchange: str, routing_key: str, message: Message | None = None, nonce: int = 0) -> Route:
        """Route a message, however long it takes. Raises RoutingTooLong."""
        found = self.route_at_once(exchange, routing_key, message, nonce)
        return self.begin(exchange, (routing_key,), message, nonce).finish() if found is None else found

    def route_at_once(
        self, exchange: str, routing_key: str, message: Message | None = None, nonce: int = 0
    ) -> Route | None:
        """Route a message; None if that takes more than AT_ONCE steps."""
        if not exchange:
            return Route((routing_key,), _KEY) if self.has_queue(routing_key) else NOWHERE
        start = self._exchanges.get(exchange)
        if start is None:
            return NOWHERE
        matcher = start.matcher
        if isinstance(matcher, TopicMatcher) and matcher.large:
            walk = Walk(self, exchange, (routing_key,), message, nonce)
            return walk.route if walk.go_on(AT_ONCE) else None
        matched = matcher.match(routing_key, message, nonce)
        if matched or start.alternate is None:
            # The usual case: the message passes no other exchange.
            queues = matched[0].queues if matched else {}
            if len(matched) > 1:
                queues = {}
                for destinations in matched:
                    queues.update(destinations.queues)
            if not any(destinations.exchanges for destinations in matched):
                depends = matcher.depends
                if depends is Depends.KEYLESS and not routing_key:
                    return Route(tuple(queues), Depends.NONCE, left_in_run(nonce))
                return Route(tuple(queues), depends if depends is _KEY else _told(depends, routing_key))
        walk = Walk(self, exchange, (routing_key,), message, nonce)
        walk.take(matched)
        return walk.route if walk.go_on(AT_ONCE) else None

    def begin(
        self, exchange: str, routing_keys: Sequence[str], message: Message | None = None, nonce: int = 0
    ) -> "Walk":
        """Begin to route a message with one routing key or several.

        As in RabbitMQ each exchange on the way matches all keys: one key may lead to an exchange, and another
        key on from there.
        """
        keys = tuple(dict.fromkeys(routing_keys))
        return Walk(self, exchange, keys, message, nonce)

    def _remove(self, binding: Binding) -> None:
        self._exchanges[binding.source].matcher.unbind(binding)
        _forget(self._from, binding.source, binding)
        self._forget_destination(binding)

    def _forget_destination(self, binding: Binding) -> None:
        _forget(self._to[binding.kind], binding.destination, binding)
        if binding.kind == "exchange":
            counts = self._neighbours[binding.source]
            counts[binding.destination] -= 1
            if not counts[binding.destination]:
                del counts[binding.destination]
            if not counts:
                del self._neighbours[binding.source]

    def _delete(self, name: str) -> list[Binding]:
        removed = list(self._from.pop(name, ()))
        # Its whole matcher is deleted; there is no need to remove single bindings from it.
        for binding in removed:
            self._forget_destination(binding)
        # A binding from the exchange to itself is gone already.
        incoming = list(self._to["exchange"].get(name, ()))
        for binding in incoming:
            self._remove(binding)
        del self._exchanges[name]
        return removed + incoming

    def _delete_unused(self, removed: list[Binding]) -> tuple[list[Binding], list[str]]:
        """Delete auto-delete exchanges that have lost their last binding, and others that thereby lose
        theirs.
        """
        deleted: list[str] = []
        for binding in removed:  # grows meanwhile
            name = binding.source
            exchange = self._exchanges.get(name)
            if exchange is not None and exchange.auto_delete and name not in self._from:
                deleted.append(name)
                removed += self._delete(name)
        return removed, deleted


def _told(depends: Depends, routing_key: str) -> Depends:
    """Resolve the dependency for this key, if an exchange on the way looks at whether the key is empty."""
    if depends is Depends.KEYLESS:
        return _KEY if routing_key else Depends.NONCE
    if not depends & Depends.KEYLESS:
        return depends
    depends &= ~Depends.KEYLESS
    return depends if routing_key else depends | Depends.NONCE


def _forget(index: dict[K, dict[Binding, None]], key: K, binding: Binding) -> None:
    del index[key][binding]
    if not index[key]:
        del index[key]
