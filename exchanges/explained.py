"""Explains where a message would go: the exchanges that it would pass, and their bindings that match it."""

from collections.abc import Generator
from typing import NamedTuple

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.local_random import anywhere
from exchanges.matcher import Depends, Message
from exchanges.registry import create_matcher
from exchanges.router import Exchange, Router, walked

#: Types whose bindings match independently. The other types choose among all bindings.
_BY_THEMSELVES = ("direct", "fanout", "topic", "headers")
#: Bindings that are compared at each step.
_COMPARED_AT_ONCE = 64


class Step(NamedTuple):
    """The decision of one exchange."""

    exchange: str
    type: str
    #: Matching bindings; for an exchange that chooses, those that lead to the chosen destination.
    bindings: tuple[Binding, ...]
    #: True if more bindings match than are listed.
    cut: bool
    #: The alternate exchange that gets the message if no binding matches.
    alternate: str | None


class Explanation(NamedTuple):
    steps: tuple[Step, ...]
    queues: tuple[str, ...]
    #: False if an equal message may go elsewhere.
    certain: bool
    #: True if the message passes more exchanges than are listed.
    cut: bool


def explain(
    router: Router,
    exchange: str,
    routing_key: str,
    message: Message | None = None,
    nonce: int = 0,
    *,
    steps_max: int = 100,
    bindings_max: int = 100,
) -> Generator[None, None, Explanation]:
    """Explain Router.route for this message, a part at each step of the iterator. At most `bindings_max`
    bindings are listed for each exchange. Raises RoutingTooLong.
    """
    route = yield from walked(router.begin(exchange, (routing_key,), message, nonce))
    steps: list[Step] = []
    visited: dict[str, None] = {}
    pending = [exchange]
    while pending and len(steps) < steps_max:
        name = pending.pop()
        found = router.get(name)
        if found is None or name in visited:
            continue
        visited[name] = None
        step = yield from _step(router, found, routing_key, message, nonce, bindings_max)
        steps.append(step)
        pending.extend(each.destination for each in step.bindings if each.kind == "exchange")
        if step.alternate is not None:
            pending.append(step.alternate)
    certain = not route.depends & Depends.NONCE
    return Explanation(tuple(steps), route.queues, certain, bool(pending))


def _step(
    router: Router,
    exchange: Exchange,
    routing_key: str,
    message: Message | None,
    nonce: int,
    bindings_max: int,
) -> Generator[None, None, Step]:
    if not exchange.name:
        # Every queue is bound to it by its name.
        own = (Binding("", routing_key, "queue", routing_key),) if router.has_queue(routing_key) else ()
        return Step("", exchange.type, own, False, None)
    queues_found: dict[str, None] = {}
    exchanges_found: dict[str, None] = {}
    for destinations in exchange.matcher.match(routing_key, message, nonce):
        queues_found.update(dict.fromkeys(destinations.queues))
        exchanges_found.update(dict.fromkeys(destinations.exchanges))
    told: list[Binding] = []
    cut = False
    for number, binding in enumerate(router.bindings(source=exchange.name), 1):
        if number % _COMPARED_AT_ONCE == 0:
            yield
        found = queues_found if binding.kind == "queue" else exchanges_found
        if binding.destination in found and _matches(exchange, binding, routing_key, message):
            if len(told) == bindings_max:
                cut = True
                break
            told.append(binding)
    nowhere = not queues_found and not exchanges_found
    return Step(exchange.name, exchange.type, tuple(told), cut, exchange.alternate if nowhere else None)


def _matches(exchange: Exchange, binding: Binding, routing_key: str, message: Message | None) -> bool:
    """True if this binding matches; one destination may have several bindings."""
    if exchange.routing_type not in _BY_THEMSELVES:
        return True
    alone = create_matcher(exchange.type, exchange.arguments, len(binding.routing_key), anywhere)
    try:
        alone.bind(binding)
    except InvalidArgument:
        return True
    return bool(alone.match(routing_key, message, 0))
