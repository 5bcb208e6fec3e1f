"""Where a message would go, and why: which exchanges it would pass, and which of their bindings match it."""

from typing import NamedTuple

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.matcher import Depends, Message
from exchanges.registry import create_matcher
from exchanges.router import Exchange, Router

#: Of these types each binding matches by itself. The others choose among all of theirs.
_BY_THEMSELVES = ("direct", "fanout", "topic", "headers")


class Step(NamedTuple):
    """What one exchange does with the message."""

    exchange: str
    type: str
    #: Those that match it; where the exchange chooses, those that lead to what it has chosen.
    bindings: tuple[Binding, ...]
    #: More match than are told of.
    cut: bool
    #: The alternate exchange that gets it, since no binding matches.
    alternate: str | None


class Explanation(NamedTuple):
    steps: tuple[Step, ...]
    queues: tuple[str, ...]
    #: False: another message like this one may go elsewhere.
    certain: bool
    #: More exchanges are passed than are told of.
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
) -> Explanation:
    """Explain Router.route for this message. `bindings_max` is for each exchange."""
    route = router.route(exchange, routing_key, message, nonce)
    steps: list[Step] = []
    visited: dict[str, None] = {}
    pending = [exchange]
    while pending and len(steps) < steps_max:
        name = pending.pop()
        found = router.get(name)
        if found is None or name in visited:
            continue
        visited[name] = None
        step = _step(router, found, routing_key, message, nonce, bindings_max)
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
) -> Step:
    if not exchange.name:
        # Every queue is bound to it by its name.
        queues = router.route("", routing_key).queues
        own = tuple(Binding("", queue, "queue", routing_key) for queue in queues)
        return Step("", exchange.type, own, False, None)
    queues_found: dict[str, None] = {}
    exchanges_found: dict[str, None] = {}
    for destinations in exchange.matcher.match(routing_key, message, nonce):
        queues_found.update(dict.fromkeys(destinations.queues))
        exchanges_found.update(dict.fromkeys(destinations.exchanges))
    told: list[Binding] = []
    cut = False
    for binding in router.bindings(source=exchange.name):
        found = queues_found if binding.kind == "queue" else exchanges_found
        if binding.destination in found and _matches(exchange, binding, routing_key, message):
            if len(told) == bindings_max:
                cut = True
                break
            told.append(binding)
    nowhere = not queues_found and not exchanges_found
    return Step(exchange.name, exchange.type, tuple(told), cut, exchange.alternate if nowhere else None)


def _matches(exchange: Exchange, binding: Binding, routing_key: str, message: Message | None) -> bool:
    """True unless this one of several bindings to a destination has nothing to do with it."""
    if exchange.type not in _BY_THEMSELVES:
        return True
    alone = create_matcher(exchange.type, exchange.arguments, len(binding.routing_key))
    try:
        alone.bind(binding)
    except InvalidArgument:
        return True
    return bool(alone.match(routing_key, message, 0))
