"""Features that a broker may lack without being wrong: exchange types that RabbitMQ has in plugins. The suite
asks the broker.
"""

import uuid

import pika
import pika.exceptions
import pytest

from conformance_tests.patience import open_connection
from conformance_tests.plugins import PLUGINS

UNKNOWN_TYPE = "unknown exchange type"

needs_exchange_type = pytest.mark.needs_exchange_type


def has_exchange_type(url: str, kind: str) -> bool:
    """Declares an exchange. Only the refusal of an unknown type means that the type is missing: other errors
    are left to the tests.
    """
    name = f"probe-{uuid.uuid4().hex[:12]}"
    connection = open_connection(url)
    try:
        channel = connection.channel()
        channel.exchange_declare(name, kind)
        channel.exchange_delete(name)
    except (pika.exceptions.ConnectionClosedByBroker, pika.exceptions.ChannelClosedByBroker) as refusal:
        return UNKNOWN_TYPE not in refusal.reply_text
    finally:
        if connection.is_open:
            connection.close()
    return True


class Features:
    """Asks once for each type, when a test first needs it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._has: dict[str, bool] = {}

    def lacks_exchange_type(self, kind: str) -> str | None:
        """The reason to skip a test that needs this type, or None."""
        if kind not in self._has:
            self._has[kind] = has_exchange_type(self._url, kind)
        if self._has[kind]:
            return None
        where = f"plugin {PLUGINS[kind]} of RabbitMQ" if kind in PLUGINS else "RabbitMQ 4 has it"
        return f"the broker has no exchange type {kind} ({where})"
