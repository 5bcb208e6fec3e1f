"""The parameter of a shovel, checked with RabbitMQ's rules and error texts."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from amqp_server.shovels import uri
from amqp_server.shovels.transfer import NO_ACK, ON_CONFIRM, ON_PUBLISH
from amqp_server.shovels.uri import InvalidUri, Uri
from amqp_server.wire import tables
from amqp_server.wire.frames import SHORT_STRING_MAX

ACK_MODES = (NO_ACK, ON_PUBLISH, ON_CONFIRM)
PREFETCH = 1_000
RECONNECT_DELAY_S = 5.0
NEVER, QUEUE_LENGTH = "never", "queue-length"
URIS = ("src-uri", "dest-uri")

#: Properties that `dest-publish-properties` may set, and the type of each.
_TEXTS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_NUMBERS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}

_Check = Callable[[str, Any], str]


#: An end that is `local`, as in RabbitMQ 4, is in the same cluster: here that is a URI without a host.
AMQP, LOCAL = "amqp091", "local"
PROTOCOLS = (AMQP, LOCAL)


class InvalidShovel(ValueError):
    """All problems, one line for each; the text has no password."""


class Definition(NamedTuple):
    source_uris: tuple[Uri, ...]
    destination_uris: tuple[Uri, ...]
    #: Empty if the source is an exchange.
    source_queue: str = ""
    source_queue_arguments: Mapping[str, Any] = {}
    source_predeclared: bool = False
    source_exchange: str = ""
    source_exchange_key: str = ""
    consumer_arguments: Mapping[str, Any] = {}
    prefetch: int = PREFETCH
    #: Messages after which the shovel is deleted, QUEUE_LENGTH or NEVER.
    delete_after: int | str = NEVER
    #: Time after which the shovel is deleted, however many messages it has moved.
    delete_after_s: int | None = None
    #: None: the destination is an exchange; if exchange or key is None, too, the message keeps its own.
    destination_queue: str | None = None
    destination_queue_arguments: Mapping[str, Any] = {}
    destination_predeclared: bool = False
    destination_exchange: str | None = None
    destination_exchange_key: str | None = None
    #: Encoded properties by name.
    properties: Mapping[str, bytes] = {}
    forward_headers: bool = False
    timestamp_header: bool = False
    ack_mode: str = ON_CONFIRM
    #: 0: a shovel that has ended is not started again.
    reconnect_delay_s: float = RECONNECT_DELAY_S
    source_protocol: str = AMQP
    destination_protocol: str = AMQP

    @property
    def ends(self) -> dict[str, str]:
        """Source and destination, by RabbitMQ's names in the status and, with dashes, in the header."""
        told: dict[str, str] = {}
        if self.source_queue:
            told["src_queue"] = self.source_queue
        else:
            told |= {"src_exchange": self.source_exchange, "src_exchange_key": self.source_exchange_key}
        if self.destination_queue is not None:
            told["dest_queue"] = self.destination_queue
            return told
        if self.destination_exchange is not None:
            told["dest_exchange"] = self.destination_exchange
        if self.destination_exchange_key is not None:
            told["dest_exchange_key"] = self.destination_exchange_key
        return told


def parse(name: str, value: object, *, uris_max: int = 32) -> Definition:
    """Parse the value of a shovel's parameter. Raises InvalidShovel."""
    # Clients write an empty object as an empty array.
    told = {} if value == [] else value
    if not isinstance(told, dict):
        raise InvalidShovel(f"{name} should be an object, actually was {_shown(told)}")
    # A field with null counts as missing.
    told = {key: each for key, each in told.items() if each is not None}
    problems = [*_ends(told), *_fields(name, told, uris_max)] or _not_local(told)
    if problems:
        raise InvalidShovel("\n".join(problems))
    delete_after = _either(told, "src-delete-after", "delete-after", NEVER)
    prefetch = _either(told, "src-prefetch-count", "prefetch-count", PREFETCH)
    properties = _either(told, "dest-publish-properties", "publish-properties", {})
    return Definition(
        source_uris=_uris(told["src-uri"]),
        destination_uris=_uris(told["dest-uri"]),
        source_queue=told.get("src-queue", ""),
        source_queue_arguments=told.get("src-queue-args") or {},
        source_predeclared=told.get("src-predeclared", False),
        source_exchange=told.get("src-exchange", ""),
        source_exchange_key=told.get("src-exchange-key", ""),
        consumer_arguments=told.get("src-consumer-args") or {},
        prefetch=max(int(prefetch), 0),
        delete_after=delete_after,
        delete_after_s=told.get("src-delete-after-duration"),
        destination_queue=told.get("dest-queue"),
        destination_queue_arguments=told.get("dest-queue-args") or {},
        destination_predeclared=told.get("dest-predeclared", False),
        destination_exchange=told.get("dest-exchange"),
        destination_exchange_key=told.get("dest-exchange-key"),
        properties={key: _property(key, each) for key, each in (properties or {}).items()},
        forward_headers=_either(told, "dest-add-forward-headers", "add-forward-headers", False),
        timestamp_header=_either(told, "dest-add-timestamp-header", "add-timestamp-header", False),
        ack_mode=told.get("ack-mode", ON_CONFIRM),
        reconnect_delay_s=max(float(told.get("reconnect-delay", RECONNECT_DELAY_S)), 0.0),
        source_protocol=told.get("src-protocol", AMQP),
        destination_protocol=told.get("dest-protocol", AMQP),
    )


def masked(value: object) -> object:
    """Return the value of a parameter with masks instead of the passwords of its URIs."""
    if not isinstance(value, dict):
        return value
    return {key: _masked(each) if key in URIS else each for key, each in value.items()}


def _masked(value: object) -> object:
    if isinstance(value, str):
        return uri.masked(value)
    return [_masked(each) for each in value] if isinstance(value, list) else value


def unmasked(value: object, before: object) -> object:
    """Return the value with the passwords of an earlier one in URIs whose password is a mask, where these
    have the same scheme, user, host and port.
    """
    if not isinstance(value, dict) or not isinstance(before, dict):
        return value
    known = [each for key in URIS for each in _texts(before.get(key))]
    return {key: _unmasked(each, known) if key in URIS else each for key, each in value.items()}


def _texts(value: object) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _unmasked(value: object, known: Sequence[str]) -> object:
    if isinstance(value, str):
        return uri.unmasked(value, known)
    return [_unmasked(each, known) for each in value] if isinstance(value, list) else value


def acts_as(value: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Return the value with this user in URIs of this node that name no user."""

    def named(text: str) -> str:
        parsed = uri.parse(text)
        return text if parsed.host or parsed.user is not None else uri.local_as(text, user)

    changed = dict(value)
    for key in URIS:
        told = value[key]
        changed[key] = named(told) if isinstance(told, str) else [named(each) for each in told]
    return changed


def may_reach(uris: Sequence[Uri], hosts: Collection[str]) -> str:
    """Return the first host that is not among those that shovels may connect to; nothing if all are.

    A name may stand for an allowed address: this is checked when the shovel connects.
    """
    networks = any(network_of(host) is not None for host in hosts)
    for each in uris:
        if not each.host or allowed_name(each.host, hosts):
            continue
        address = _address_of(each.host)
        if address is None and networks:
            continue
        if address is None or not allowed_address(each.host, hosts):
            return each.host
    return ""


def allowed_name(host: str, hosts: Collection[str]) -> bool:
    """True if the names of `shovel_hosts` include this one, or there are no limits."""
    name = host.lower().rstrip(".")
    return not hosts or any(
        name == each.lower() or (each.startswith("*.") and name.endswith(each[1:].lower())) for each in hosts
    )


def allowed_address(address: str, hosts: Collection[str]) -> bool:
    parsed = _address_of(address)
    if parsed is None:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    networks = [network for each in hosts if (network := network_of(each)) is not None]
    return any(parsed.version == network.version and parsed in network for network in networks)


def network_of(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


# -- checks --------------------------------------------------------------------------------------------------


def _ends(told: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    source = ("src-exchange" in told) + ("src-queue" in told)
    if source == 0:
        problems.append("Must specify 'src-exchange' or 'src-queue'")
    elif source == 2:
        problems.append("Cannot specify 'src-exchange' and 'src-queue'")
    if "dest-exchange" in told and "dest-queue" in told:
        problems.append("Cannot specify 'dest-exchange' and 'dest-queue'")
    delete_after = told.get("src-delete-after", told.get("delete-after"))
    if told.get("ack-mode") == NO_ACK and _is_number(delete_after):
        problems.append("Cannot specify 'no-ack' and numerical 'delete-after'")
    return problems


def _not_local(told: Mapping[str, Any]) -> list[str]:
    return [
        f"{end}-uri of the protocol local should have no host, actually was {each.shown}"
        for end in ("src", "dest")
        if told.get(f"{end}-protocol") == LOCAL
        for each in _uris(told[f"{end}-uri"])
        if each.host
    ]


def _fields(name: str, told: Mapping[str, Any], uris_max: int) -> list[str]:
    problems = [f'Key "{key}" not found in {name}' for key in ("dest-uri", "src-uri") if key not in told]
    unknown = [f"{{{_shown(key)},{_shown(each)}}}" for key, each in told.items() if key not in _CHECKS]
    if unknown:
        problems.append(f"Unrecognised terms [{','.join(unknown)}] in {name}")
    for key, each in told.items():
        check = _CHECKS.get(key)
        if check is not None and (problem := check(key, each)):
            problems.append(problem)
    for key in URIS:
        given = told.get(key)
        if isinstance(given, list) and len(given) > uris_max:
            problems.append(f"{key} has {len(given)} URIs; the maximum is {uris_max} (shovel_uris_max)")
    return problems


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        return f"{key} should be binary, actually was {_shown(value)}"
    if len(value.encode()) > SHORT_STRING_MAX:
        return f"{key} should have {SHORT_STRING_MAX} bytes at most"
    return ""


def _source_queue(key: str, value: Any) -> str:
    return _text(key, value) or ("" if value else f"{key} should not be empty")


def _number(key: str, value: Any) -> str:
    return "" if _is_number(value) else f"{key} should be a number, actually was {_shown(value)}"


def _boolean(key: str, value: Any) -> str:
    return "" if isinstance(value, bool) else f"{key} should be boolean, actually was {_shown(value)}"


def _ack_mode(key: str, value: Any) -> str:
    if not isinstance(value, str):
        return _text(key, value)
    if value in ACK_MODES:
        return ""
    return f"{key} should be one of {_shown(list(ACK_MODES))}, actually was {_shown(value)}"


def _delete_after(key: str, value: Any) -> str:
    if value in (NEVER, QUEUE_LENGTH) or (isinstance(value, int) and _is_number(value) and value >= 0):
        return ""
    return (
        f'{key} should be a number greater than or equal to 0, "never" or "queue-length", '
        f"actually was {_shown(value)}"
    )


def _duration(key: str, value: Any) -> str:
    if isinstance(value, int) and _is_number(value) and value > 0:
        return ""
    return f"{key} should be a positive integer (seconds), actually was {_shown(value)}"


def _protocol(key: str, value: Any) -> str:
    return "" if value in PROTOCOLS else f"{key} should be amqp091, actually was {_shown(value)}"


def _uri(key: str, value: Any) -> str:
    if not isinstance(value, str | list):
        return f"{key} should be list, actually was {_shown(value)}"
    given = [value] if isinstance(value, str) else value
    if not given:
        return f"{key} should not be empty"
    for each in given:
        if not isinstance(each, str):
            return f"{key} should be list, actually was {_shown(each)}"
        try:
            uri.parse(each)
        except InvalidUri as invalid:
            return str(invalid)
    return ""


def _arguments(key: str, value: Any) -> str:
    if value == []:
        return ""
    if not isinstance(value, dict):
        return f"{key} not a list {_shown(value)}"
    try:
        tables.encode(value)
    except (tables.TableError, ValueError) as error:
        return f"{key}: {error}"
    return ""


def _properties(key: str, value: Any) -> str:
    if value == []:
        return ""
    if not isinstance(value, dict):
        return f"{key} not a list {_shown(value)}"
    unknown = [
        f"{{{_shown(each)},{_shown(told)}}}"
        for each, told in value.items()
        if each not in _TEXTS and each not in _NUMBERS
    ]
    if unknown:
        return f"Unrecognised terms [{','.join(unknown)}] in {key}"
    for each, told in value.items():
        size = _NUMBERS.get(each, 0)
        if not size and (problem := _text(each, told)):
            return problem
        if size and not (isinstance(told, int) and _is_number(told) and 0 <= told < 1 << 8 * size):
            return f"{each} should be a number, actually was {_shown(told)}"
    return ""


_CHECKS: Mapping[str, _Check] = {
    "src-protocol": _protocol,
    "dest-protocol": _protocol,
    "src-uri": _uri,
    "src-queue": _source_queue,
    "src-queue-args": _arguments,
    "src-predeclared": _boolean,
    "src-exchange": _text,
    "src-exchange-key": _text,
    "src-consumer-args": _arguments,
    "src-prefetch-count": _number,
    "prefetch-count": _number,
    "src-delete-after": _delete_after,
    "delete-after": _delete_after,
    "src-delete-after-duration": _duration,
    "dest-uri": _uri,
    "dest-queue": _text,
    "dest-queue-args": _arguments,
    "dest-predeclared": _boolean,
    "dest-exchange": _text,
    "dest-exchange-key": _text,
    "dest-publish-properties": _properties,
    "publish-properties": _properties,
    "dest-add-forward-headers": _boolean,
    "add-forward-headers": _boolean,
    "dest-add-timestamp-header": _boolean,
    "add-timestamp-header": _boolean,
    "reconnect-delay": _number,
    "ack-mode": _ack_mode,
}


def _either(told: Mapping[str, Any], new: str, old: str, default: Any) -> Any:
    return told.get(new, told.get(old, default))


def _uris(value: str | list[str]) -> tuple[Uri, ...]:
    return tuple(uri.parse(each) for each in ([value] if isinstance(value, str) else value))


def _property(name: str, value: Any) -> bytes:
    size = _NUMBERS.get(name)
    if size is not None:
        return int(value).to_bytes(size, "big")
    data = str(value).encode()
    return bytes((len(data),)) + data


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """Return a value as Erlang shows it. Not used for URIs."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'<<"{uri.masked(value)}">>'
        case list():
            return f"[{','.join(map(_shown, value))}]"
        case dict():
            return f"#{{{','.join(f'{_shown(key)} => {_shown(each)}' for key, each in value.items())}}}"
        case _:
            return str(value)
