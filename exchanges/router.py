"""The exchanges and bindings of one vhost, and the routing of messages."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from exchanges.binding import Binding, DestinationKind
from exchanges.errors import InvalidArgument, UnknownExchangeType
from exchanges.field import type_name
from exchanges.matcher import Depends, Destinations, Matcher, Message
from exchanges.registry import PREDECLARED, create_matcher

__all__ = ["Depends", "Exchange", "InvalidArgument", "Route", "Router", "UnknownExchangeType"]

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
        "type",
    )

    def __init__(self, name: str, type: str, matcher: Matcher, arguments: Mapping[str, object]) -> None:
        self.name = name
        self.type = type
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
    depends: Depends


NOWHERE = Route((), _KEY)


class Router:
    def __init__(
        self,
        has_queue: Callable[[str], bool],
        *,
        vhost: str = "/",
        any_words_max: int = 16,
        alternates_max: int = 1_000,
    ) -> None:
        self._has_queue = has_queue
        self._vhost = vhost
        self._any_words_max = any_words_max
        #: Most alternate exchanges that one message goes to.
        self._alternates_max = alternates_max
        self._exchanges: dict[str, Exchange] = {}
        self._from: dict[str, dict[Binding, None]] = {}
        self._to: dict[DestinationKind, dict[str, dict[Binding, None]]] = {"queue": {}, "exchange": {}}
        # For each exchange, the exchanges bound to it, with the number of bindings.
        self._neighbours: dict[str, dict[str, int]] = {}
        # Cache of the inputs on which the answer of an exchange may depend, if it looks at more than the key;
        # cleared at each change.
        self._reachable_depends: dict[str, Depends] = {}

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
        exchange = Exchange(name, type, create_matcher(type, arguments, self._any_words_max), arguments)
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
        self._reachable_depends.clear()
        return exchange

    def set_alternate(self, name: str, alternate: str | None) -> bool:
        """Give an exchange an alternate, or none; a declared alternate stays. Return True if its alternate
        has changed.
        """
        exchange = self._exchanges[name]
        if "alternate-exchange" in exchange.arguments or exchange.alternate == alternate:
            return False
        exchange.alternate = alternate
        self._reachable_depends.clear()
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
            self._reachable_depends.clear()
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

    @property
    def binding_count(self) -> int:
        return sum(map(len, self._from.values()))

    def reachable_queues(self, exchange: str) -> list[str] | None:
        """Return the queues that bindings lead to from an exchange, through other exchanges and alternates,
        too.

        None stands for all queues, if the default exchange is reached.
        """
        start = self._exchanges.get(exchange)
        queues: dict[str, None] = {}
        for each in self._reachable(start) if start is not None else ():
            if not each.name:
                return None
            for binding in self._from.get(each.name, ()):
                if binding.kind == "queue":
                    queues[binding.destination] = None
        return list(queues)

    def in_use(self, name: str) -> bool:
        return bool(self._from.get(name))

    def route(self, exchange: str, routing_key: str, message: Message | None = None, nonce: int = 0) -> Route:
        if not exchange:
            return Route((routing_key,), _KEY) if self._has_queue(routing_key) else NOWHERE
        start = self._exchanges.get(exchange)
        if start is None:
            return NOWHERE
        matched = start.matcher.match(routing_key, message, nonce)
        if len(matched) == 1 and not matched[0].exchanges:
            depends = self._depends(start)
            return Route(
                tuple(matched[0].queues), depends if depends is _KEY else _told(depends, routing_key)
            )
        return self._walk(start, matched, (routing_key,), message, nonce)

    def route_keys(
        self, exchange: str, routing_keys: Sequence[str], message: Message | None = None, nonce: int = 0
    ) -> tuple[str, ...]:
        """Return the destinations of a message with several routing keys.

        As in RabbitMQ each exchange on the way matches all keys: one key may lead to an exchange, and another
        key on from there.
        """
        keys = tuple(dict.fromkeys(routing_keys))
        if not exchange:
            return tuple(key for key in keys if self._has_queue(key))
        start = self._exchanges.get(exchange)
        if start is None:
            return ()
        return self._walk(start, _match(start, keys, message, nonce), keys, message, nonce).queues

    def _walk(
        self,
        start: Exchange,
        matched: Sequence[Destinations],
        routing_keys: Sequence[str],
        message: Message | None,
        nonce: int,
    ) -> Route:
        """Follow bindings to exchanges, and alternates of exchanges without a match. Each is visited once.

        A chain of alternates costs its whole length for each message, and is cheap to make; so it is bounded.
        """
        queues: dict[str, int] = {}
        depends = self._depends(start)
        visited = {start.name: None}
        pending: list[str] = []
        alternates = 0
        exchange = start
        while True:
            for destinations in matched:
                queues.update(destinations.queues)
                if destinations.exchanges:
                    pending.extend(destinations.exchanges)
            if not matched and exchange.alternate is not None and alternates < self._alternates_max:
                alternates += 1
                pending.append(exchange.alternate)
            following = None
            while pending and following is None:
                name = pending.pop()
                if name in visited:
                    continue
                visited[name] = None
                if not name:
                    queues.update((key, 1) for key in routing_keys if self._has_queue(key))
                    continue
                following = self._exchanges.get(name)
            if following is None:
                return Route(tuple(queues), depends if depends is _KEY else _told(depends, routing_keys[0]))
            exchange = following
            if exchange.matcher.depends is not _KEY:
                depends |= self._depends(exchange)
            matched = _match(exchange, routing_keys, message, nonce)

    def _depends(self, exchange: Exchange) -> Depends:
        """For one key, an exchange that decides by the key alone always leads to the same next exchanges,
        which answer for themselves. One that looks at more could have led to any of its neighbours.
        """
        if exchange.matcher.depends is _KEY:
            return _KEY
        known = self._reachable_depends.get(exchange.name)
        if known is None:
            known = self._reachable_depends[exchange.name] = self._collect_depends(exchange)
        return known

    def _collect_depends(self, start: Exchange) -> Depends:
        depends = _KEY
        for exchange in self._reachable(start):
            depends |= exchange.matcher.depends
        return depends

    def _reachable(self, start: Exchange) -> Iterator[Exchange]:
        visited = {start.name: None}
        pending = [start]
        while pending:
            exchange = pending.pop()
            yield exchange
            names = list(self._neighbours.get(exchange.name, ()))
            if exchange.alternate is not None:
                names.append(exchange.alternate)
            for name in names:
                following = self._exchanges.get(name)
                if following is not None and name not in visited:
                    visited[name] = None
                    pending.append(following)

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
            self._reachable_depends.clear()

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
        self._reachable_depends.clear()
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


def _match(
    exchange: Exchange, routing_keys: Sequence[str], message: Message | None, nonce: int
) -> Sequence[Destinations]:
    matcher = exchange.matcher
    matched = matcher.match(routing_keys[0], message, nonce)
    if len(routing_keys) > 1 and matcher.wants_all_keys:
        return [
            *matched,
            *(found for key in routing_keys[1:] for found in matcher.match(key, message, nonce)),
        ]
    return matched


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
