"""The names of a vhost's streams, from the management API: AMQP has no way to ask for them.

mqd and RabbitMQ have the same paths. Super streams are exchanges. Their partitions are streams, too, and are
not listed besides.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Collection
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from spark_sink.client.errors import AmqpError
from spark_sink.client.login import Login
from spark_sink.options import SourceOptions
from spark_sink.source.consumer import QueueRefused

SUPER_STREAM, ARGUMENT = "x-super-stream", "x-super-stream"
UNAUTHORIZED, FORBIDDEN, MISSING = 401, 403, 404
#: Maximum size of an answer.
ANSWER_BYTES_MAX = 256 << 20


def matching(options: SourceOptions, pattern: str) -> list[str]:
    """Return the streams and super streams whose whole names match a pattern, in order. Raises AmqpError."""
    queues = _ask(options, "queues?columns=name,type,arguments")
    exchanges = _ask(options, "exchanges?columns=name,type,arguments")
    supers = {each["name"] for each in exchanges if _is_super(each)}
    singles = {each["name"] for each in queues if _is_stream(each)}
    whole = re.compile(pattern)
    return sorted(
        name for name in supers | _without_partitions(singles, supers) if whole.fullmatch(name) is not None
    )


def _is_stream(queue: dict[str, Any]) -> bool:
    kind = queue.get("type") or (queue.get("arguments") or {}).get("x-queue-type")
    return kind == "stream"


def _is_super(exchange: dict[str, Any]) -> bool:
    arguments = exchange.get("arguments") or {}
    return exchange.get("type") == SUPER_STREAM or arguments.get(ARGUMENT) is True


def _without_partitions(singles: Collection[str], supers: Collection[str]) -> set[str]:
    def is_partition(name: str) -> bool:
        stream, _, number = name.rpartition("-")
        return number.isdecimal() and stream in supers

    return {name for name in singles if not is_partition(name)}


def _ask(options: SourceOptions, path: str) -> list[dict[str, Any]]:
    """Ask the first host that answers. Raises AmqpError."""
    login = options.login
    kind, _, columns = path.partition("?")
    reasons: list[str] = []
    for url in options.management_url:
        try:
            context = options.management_tls.context() if url.startswith("https:") else None
            found = _get(f"{url}/api/{kind}/{quote(login.vhost, safe='')}?{columns}", login, context)
        except urllib.error.HTTPError as error:
            if error.code in (UNAUTHORIZED, FORBIDDEN):
                raise QueueRefused(
                    f"option 'managementUrl': {url} refuses user '{login.username}' ({error.code}). The user needs a tag, "
                    "such as monitoring or management, and access to the vhost"
                ) from None
            if error.code == MISSING:
                raise QueueRefused(
                    f"option 'managementUrl': {url} has no vhost '{login.vhost}', or no management API"
                ) from None
            reasons.append(f"{url}: {error.code} {error.reason}")
        except (OSError, HTTPException, ValueError) as error:
            reasons.append(f"{url}: {getattr(error, 'reason', error)}")
        else:
            if isinstance(found, list):
                return found
            reasons.append(f"{url}: it is no management API")
    raise AmqpError(f"the names of streams are not known: {'; '.join(reasons)} (option 'managementUrl')")


def _get(url: str, login: Login, context: ssl.SSLContext | None) -> Any:
    credentials = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {credentials}"})
    # The answer comes from the named host itself: no proxy, and credentials follow no redirection.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirect
    )
    with opener.open(request, timeout=login.connect_timeout_ms / 1_000) as answer:
        data = answer.read(ANSWER_BYTES_MAX + 1)
    if len(data) > ANSWER_BYTES_MAX:
        raise ValueError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    return json.loads(data)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None
