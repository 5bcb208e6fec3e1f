"""What exchanges may look at besides the routing key."""

from __future__ import annotations

from amqp_server.wire.content import Properties


class RoutingView:
    """The view of one message; see exchanges.matcher.Message. Its headers are decoded only for an exchange
    that looks at them: there may be very many.
    """

    __slots__ = ("_headers", "_is_decoded", "_properties")

    def __init__(self, properties: Properties) -> None:
        self._properties = Properties(properties.raw.copy())
        self._headers: dict[str, object] | None = None
        self._is_decoded = False

    def get(self, name: str, /) -> object:
        if name == "headers":
            if not self._is_decoded:
                self._headers, self._is_decoded = self._properties.headers, True
            return self._headers
        if name == "timestamp":
            return self._properties.timestamp
        return self._properties.text(name)


__all__ = ["RoutingView"]
