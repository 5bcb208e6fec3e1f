"""Who a producer of transactions is: the headers x-producer and x-producer-epoch of a message."""

from __future__ import annotations

from typing import Final

from amqp_server.broker.transactions import Producer
from amqp_server.channel.deduplication import PRODUCER
from amqp_server.errors import PreconditionFailed
from amqp_server.wire import content

EPOCH: Final = b"x-producer-epoch"
EPOCH_MAX: Final = (1 << 63) - 1
NAME_BYTES_MAX: Final = 255


def producer_of(item: bytes, vhost: str) -> Producer | None:
    """Return the producer that a message names, None if it names none. Raises PreconditionFailed."""
    header = content.header_of(item)
    if EPOCH not in header:
        return None
    headers = content.Properties.parse(header).headers or {}
    if EPOCH.decode() not in headers:
        return None
    epoch, name = headers[EPOCH.decode()], headers.get(PRODUCER)
    # A name that is no UTF-8 comes as bytes.
    if not isinstance(name, str) or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise PreconditionFailed(
            f"a message with x-producer-epoch needs x-producer, a text of 1 to {NAME_BYTES_MAX} bytes"
        )
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= EPOCH_MAX:
        raise PreconditionFailed(
            f"invalid header x-producer-epoch {str(epoch)[:80]!r}: it must be a number from 0 to {EPOCH_MAX}"
        )
    return Producer(key_of(vhost, name), epoch)


def key_of(vhost: str, name: str) -> str:
    """Return what stands for a producer in all tables. No other producer of any virtual host has the same:
    both names may contain slashes.
    """
    if vhost != "/":
        vhost = vhost.replace("%", "%25").replace("/", "%2F") or "%"
    return f"{vhost}/{name}"


__all__ = ["EPOCH", "producer_of"]
