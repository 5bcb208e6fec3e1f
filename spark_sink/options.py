"""Every option, declared once: what reads it, what it must be, what stands when it is not given.

Spark hands options over with names in any case and values as text. A name that nobody knows is an error that
names the nearest one: a mistyped `vHost` that is silently ignored sends the data elsewhere.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, TypeVar

from spark_sink.client.login import PORT, TLS_PORT, BadUrl, Host, Login, Tls, parse_url

BOTH, SINK, SOURCE = ("sink", "source"), ("sink",), ("source",)
SHORTSTR_BYTES_MAX = 255
#: It becomes a part of message ids and of the names of queues, which are short strings themselves.
APP_ID_BYTES_MAX = 200
DAY_MS = 86_400_000

#: What Spark itself puts among the options of a query.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "path"})

#: In JSON of offsets, as the Kafka source has it.
EARLIEST, LATEST = -2, -1
#: By the number of the partition.
StartingOffsets: TypeAlias = Literal["earliest", "latest"] | dict[int, int]

Delivery = Literal["confirm", "exactly-once", "ledger", "tx", "none"]
Deduplication = Literal["auto", "broker", "ledger"]


class BadOption(ValueError):
    """The text names the option, and what would be right."""


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    read: Callable[[str, str], Any]
    default: Any
    sides: tuple[str, ...]
    meaning: str


def _text(name: str, value: str) -> str:
    return value


def _short(name: str, value: str) -> str:
    most = APP_ID_BYTES_MAX if name == "txnAppId" else SHORTSTR_BYTES_MAX
    if len(value.encode()) > most:
        raise BadOption(f"option '{name}' is longer than {most} bytes")
    return value


def _flag(name: str, value: str) -> bool:
    try:
        return {"true": True, "false": False}[value.strip().lower()]
    except KeyError:
        raise BadOption(f"option '{name}' must be true or false, not {value!r}") from None


def _number(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise BadOption(f"option '{name}' must be a whole number, not {value!r}") from None
        if not least <= number <= most:
            raise BadOption(f"option '{name}' must be between {least} and {most}, not {number}")
        return number

    return read


def _offsets(name: str, value: str) -> StartingOffsets:
    """`earliest`, `latest`, or JSON as the Kafka source takes it: by
    number, also within the stream's name.
    """
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return "earliest" if word == "earliest" else "latest"
    wrong = BadOption(
        f'option \'{name}\' must be earliest, latest or JSON such as {{"0": 17, "1": -2}}, not {value!r}'
    )
    try:
        found = json.loads(value)
    except ValueError:
        raise wrong from None
    if isinstance(found, dict) and len(found) == 1 and isinstance(inner := next(iter(found.values())), dict):
        found = inner
    if not isinstance(found, dict) or not found:
        raise wrong
    for partition, offset in found.items():
        if not partition.isdecimal() or type(offset) is not int or not EARLIEST <= offset < 2**63:
            raise wrong
    return {int(partition): offset for partition, offset in found.items()}


def _moment(name: str, value: str) -> int:
    """Milliseconds since 1970."""
    text = value.strip()
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"option '{name}' must be ms since 1970 or a time such as 2026-01-31T12:00:00+00:00, not {value!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment.timestamp() < 0:
        raise BadOption(f"option '{name}' is before 1970: {value!r}")
    return int(moment.timestamp() * 1_000)


def _choice(*choices: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        found = {choice.lower(): choice for choice in choices}.get(value.strip().lower())
        if found is None:
            raise BadOption(f"option '{name}' must be {_or(choices)}, not {value!r}{nearest(value, choices)}")
        return found

    return read


def _or(choices: Iterable[str]) -> str:
    *first, last = choices
    return f"{', '.join(first)} or {last}"


INT32_MAX = 2**31 - 1

OPTIONS: tuple[Option, ...] = (
    Option(
        "url",
        _text,
        None,
        BOTH,
        "amqp:// or amqps://user:password@host:5672/vhost; several hosts with commas are tried in turn",
    ),
    Option(
        "host",
        _text,
        "localhost",
        BOTH,
        "instead of url; several with commas, each with its :port if it differs",
    ),
    Option("port", _number(1, 65_535), None, BOTH, f"instead of url; {PORT}, with TLS {TLS_PORT}"),
    Option("vhost", _text, "/", BOTH, "instead of url"),
    Option("username", _short, "guest", BOTH, "beside url or host; beats the one in url"),
    Option("password", _text, "guest", BOTH, "beside url or host; beats the one in url"),
    Option("tls", _flag, False, BOTH, "TLS, where host is given; with url write amqps://"),
    Option(
        "tls.caFile", _text, None, BOTH, "certificates that the broker's must be signed by; else the system's"
    ),
    Option("tls.certFile", _text, None, BOTH, "the client's certificate"),
    Option("tls.keyFile", _text, None, BOTH, "its key"),
    Option("tls.verify", _flag, True, BOTH, "whether the broker's certificate and name are checked"),
    Option("tls.serverName", _text, None, BOTH, "the name that the certificate must hold; else the host"),
    Option("heartbeat", _number(1, 65_535), 60, BOTH, "seconds; the broker may ask for less"),
    Option("connectTimeoutMs", _number(1, INT32_MAX), 10_000, BOTH, "for each host, until logged in"),
    Option(
        "exchange",
        _short,
        "",
        SINK,
        "where messages go; empty: the default exchange, the routing key is the queue",
    ),
    Option("routingKey", _short, None, SINK, "for rows without a routing_key of their own"),
    Option("mandatory", _flag, True, SINK, "whether a message that no queue takes fails the task"),
    Option("deliveryMode", _number(1, 2), 2, SINK, "2: kept on disk by durable queues; 1: not"),
    Option(
        "delivery",
        _choice("confirm", "exactly-once", "ledger", "tx", "none"),
        "confirm",
        SINK,
        "what holds when something dies; see Delivery",
    ),
    Option(
        "deduplication",
        _choice("auto", "broker", "ledger"),
        "auto",
        SINK,
        "with exactly-once: who drops duplicates; broker needs queues with x-deduplication",
    ),
    Option(
        "maxInFlight",
        _number(1, 1_000_000),
        5_000,
        SINK,
        "messages sent and not yet confirmed, for each task",
    ),
    Option(
        "confirmTimeoutMs",
        _number(1, INT32_MAX),
        60_000,
        SINK,
        "how long a task goes without a confirm before it fails; reconnecting included",
    ),
    Option(
        "messageId", _choice("auto", "none"), "auto", SINK, "auto: `<query or job>/<batch>/<partition>/<row>`"
    ),
    Option(
        "txnAppId", _short, None, SINK, "exactly-once for batch writes: the name of the writing application"
    ),
    Option(
        "txnVersion",
        _number(0, INT32_MAX),
        None,
        SINK,
        "and a number that rises with each write; foreachBatch's batch id",
    ),
    Option(
        "ledgerExpiresMs",
        _number(60_000, 10 * 365 * DAY_MS),
        7 * DAY_MS,
        SINK,
        "how long a ledger outlives its last use; no query may rest for longer",
    ),
    Option("ignoreUnknownColumns", _flag, False, SINK, "whether columns that mean nothing here are left out"),
    Option(
        "maxMessageBytes",
        _number(1, INT32_MAX),
        16 << 20,
        SINK,
        "the longest body; no more than the broker takes",
    ),
    Option(
        "packing",
        _choice("none", "arrow"),
        "none",
        SINK,
        "arrow: many rows in one message, as an Arrow IPC stream compressed by zstd",
    ),
    Option("packRows", _number(1, 1_000_000), 10_000, SINK, "with packing: the most rows of one message"),
    Option("queue", _short, None, SOURCE, "a classic or quorum queue that is read"),
    Option(
        "stream",
        _short,
        None,
        BOTH,
        "a stream or a super stream; read: instead of queue; written: instead of exchange and routingKey, the column "
        "routing_key being the key that chooses the partition",
    ),
    Option(
        "maxMessagesPerTrigger",
        _number(1, 10_000_000),
        50_000,
        SOURCE,
        "queues: the most messages of one micro-batch",
    ),
    Option(
        "prefetch",
        _number(1, 65_535),
        None,
        SOURCE,
        "unacked messages that the broker sends ahead; from maxMessagesPerTrigger, of a stream 20000",
    ),
    Option("exclusive", _flag, True, SOURCE, "queues: whether the query is the queue's only consumer"),
    Option(
        "ack",
        _choice("none", "onRead"),
        "none",
        SOURCE,
        "queues, batch reads: none leaves the messages in the queue",
    ),
    Option("maxMessages", _number(1, INT32_MAX), None, SOURCE, "queues, batch reads: stop after so many"),
    Option(
        "startingOffsets",
        _offsets,
        None,
        SOURCE,
        "streams: earliest (batches), latest (queries) or JSON, the offset of each partition; -2 and -1 stand for "
        "earliest and latest. A query that has a checkpoint goes on from that",
    ),
    Option(
        "endingOffsets",
        _offsets,
        None,
        SOURCE,
        "streams, batch reads: latest or JSON, where each partition ends; that offset is not read",
    ),
    Option(
        "startingTimestamp",
        _moment,
        None,
        SOURCE,
        "streams: instead of startingOffsets; ms since 1970, or as 2026-01-31T12:00:00+00:00",
    ),
    Option(
        "maxOffsetsPerTrigger",
        _number(1, 2**62),
        None,
        SOURCE,
        "streams: the most messages of one micro-batch, shared out among partitions by what each has; else all",
    ),
    Option(
        "minPartitions",
        _number(1, 100_000),
        None,
        SOURCE,
        "streams: tasks to cut a read into, where there are fewer partitions",
    ),
    Option(
        "failOnDataLoss",
        _flag,
        True,
        SOURCE,
        "whether messages that a checkpoint or an offset names and that are gone fail the query",
    ),
    Option(
        "redeliveryTimeoutMs",
        _number(1, INT32_MAX),
        30_000,
        SOURCE,
        "how long the broker may say that nothing is left before messages that are due count as missing",
    ),
    Option("includeHeaders", _flag, True, SOURCE, "whether there is a column headers"),
)


_FOR_QUEUES = ("maxMessagesPerTrigger", "exclusive", "ack", "maxMessages")
_FOR_STREAMS = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    login: Login
    exchange: str
    routing_key: str | None
    mandatory: bool
    delivery_mode: int
    delivery: Delivery
    deduplication: Deduplication
    max_in_flight: int
    confirm_timeout_ms: int
    message_id: Literal["auto", "none"]
    txn_app_id: str | None
    txn_version: int | None
    ledger_expires_ms: int
    ignore_unknown_columns: bool
    max_message_bytes: int
    stream: str | None
    packing: Literal["none", "arrow"]
    pack_rows: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    login: Login
    #: Empty if a stream is read.
    queue: str
    #: None if a queue is read.
    stream: str | None
    starting_offsets: StartingOffsets | None
    ending_offsets: StartingOffsets | None
    #: Milliseconds.
    starting_timestamp: int | None
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_messages_per_trigger: int
    #: None: chosen from max_messages_per_trigger.
    prefetch: int | None
    exclusive: bool
    ack: Literal["none", "onRead"]
    max_messages: int | None
    fail_on_data_loss: bool
    redelivery_timeout_ms: int
    include_headers: bool


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises BadOption."""
    read = _read(given, "sink")
    if (read["txnAppId"] is None) != (read["txnVersion"] is None):
        raise BadOption("options 'txnAppId' and 'txnVersion' belong together: give both or neither")
    if read["txnAppId"] is not None and read["delivery"] not in ("exactly-once", "ledger"):
        raise BadOption(
            "option 'txnAppId' does something only with delivery=exactly-once: set 'delivery' too"
        )
    names = {name.lower() for name in given}
    if read["stream"] is not None:
        if both := names & {"exchange", "routingkey"}:
            name = "exchange" if "exchange" in both else "routingKey"
            raise BadOption(f"options 'stream' and '{name}' both say where messages go: give one of them")
        if not read["stream"]:
            raise BadOption("option 'stream' is empty: name the stream to write to")
    if "packrows" in names and read["packing"] == "none":
        raise BadOption("option 'packRows' does something only with packing=arrow: set 'packing' too")
    if "deduplication" in names and read["delivery"] != "exactly-once":
        raise BadOption(
            "option 'deduplication' does something only with delivery=exactly-once: set 'delivery' too"
        )
    if "ledgerexpiresms" in names and read["delivery"] not in ("exactly-once", "ledger"):
        raise BadOption(
            "option 'ledgerExpiresMs' does something only with delivery=exactly-once or ledger: set 'delivery' too"
        )
    return _make(SinkOptions, _login(given, read), read)


def batch_options(given: Mapping[str, str]) -> SinkOptions:
    """As sink_options, for `df.write`, which has no checkpoint to know a repetition by. Raises BadOption."""
    options = sink_options(given)
    if options.delivery in ("exactly-once", "ledger") and options.txn_app_id is None:
        raise BadOption(
            f"delivery={options.delivery} of a batch needs the options 'txnAppId', the name of the writing application,"
            " and 'txnVersion', a number that rises with each write: nothing else tells a batch that is repeated from a"
            " new one"
        )
    return options


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Raises BadOption."""
    read = _read(given, "source")
    names = {name.lower() for name in given}
    if read["queue"] and read["stream"]:
        raise BadOption("options 'queue' and 'stream' are two sources: give one of them")
    if not read["queue"] and not read["stream"]:
        raise BadOption(
            "option 'queue' is missing: name the queue to read from, or a stream by option 'stream'"
        )
    for name in _FOR_QUEUES if read["stream"] else _FOR_STREAMS:
        if name.lower() in names:
            kind, other = ("stream", "queue") if read["stream"] else ("queue", "stream")
            raise BadOption(f"option '{name}' cannot be used for a {kind}: it belongs to option '{other}'")
    if read["startingOffsets"] is not None and read["startingTimestamp"] is not None:
        raise BadOption("options 'startingOffsets' and 'startingTimestamp' say the same: give one of them")
    if read["endingOffsets"] == "earliest" or EARLIEST in _given_offsets(read["endingOffsets"]):
        raise BadOption("option 'endingOffsets' cannot be earliest: nothing would be read")
    read["queue"] = read["queue"] or ""
    return _make(SourceOptions, _login(given, read), read)


def query_options(given: Mapping[str, str]) -> SourceOptions:
    """As source_options, for `spark.readStream`. Raises BadOption."""
    options = source_options(given)
    for name in _given(given, "ack", "maxMessages"):
        raise BadOption(
            f"option '{name}' is for spark.read: a query acks what Spark has committed, and goes on until it is stopped"
        )
    if options.ending_offsets is not None:
        raise BadOption("option 'endingOffsets' is for spark.read: a query has no end")
    return options


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """As source_options, for `spark.read`. Raises BadOption."""
    options = source_options(given)
    for name in _given(given, "maxOffsetsPerTrigger", "maxMessagesPerTrigger"):
        raise BadOption(f"option '{name}' is for spark.readStream: a batch read has no triggers")
    if options.starting_offsets == "latest" or LATEST in _given_offsets(options.starting_offsets):
        raise BadOption("option 'startingOffsets' cannot be latest in a batch read: nothing would be read")
    return options


def _given(given: Mapping[str, str], *names: str) -> Iterable[str]:
    """Return which of these options are given."""
    lower = {name.lower() for name in given}
    return [name for name in names if name.lower() in lower]


def _given_offsets(offsets: StartingOffsets | None) -> Iterable[int]:
    return offsets.values() if isinstance(offsets, dict) else ()


def _read(given: Mapping[str, str], side: str) -> dict[str, Any]:
    by_lower = {option.name.lower(): option for option in OPTIONS}
    read = {option.name: option.default for option in OPTIONS}
    for name, value in given.items():
        option = by_lower.get(name.lower())
        if option is None:
            if name.lower() in SPARKS_OWN:
                continue
            ours = [each.name for each in OPTIONS if side in each.sides]
            raise BadOption(f"no option '{name}'{nearest(name, ours) or '; there are ' + ', '.join(ours)}")
        if side not in option.sides:
            other = {"sink": "read", "source": "written"}[side]
            raise BadOption(f"option '{option.name}' has no meaning here: it belongs to what is {other}")
        read[option.name] = option.read(option.name, str(value))
    return read


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or nothing when nothing is near."""
    by_plain = {_plain(each): each for each in known}
    found = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=0.55)
    return f"; did you mean '{by_plain[found[0]]}'?" if found else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(".", "")


Options = TypeVar("Options", SinkOptions, SourceOptions)


def _make(kind: type[Options], login: Login, read: Mapping[str, Any]) -> Options:
    by_field = {_snake(name): value for name, value in read.items()}
    fields = [name for name in kind.__dataclass_fields__ if name != "login"]
    return kind(login=login, **{name: by_field[name] for name in fields})


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)


def _login(given: Mapping[str, str], read: Mapping[str, Any]) -> Login:
    names = {name.lower() for name in given}
    if read["url"] is not None:
        if both := names & {"host", "port", "vhost", "tls"}:
            raise BadOption(f"options 'url' and '{both.pop()}' say the same: give one of them")
        try:
            login = parse_url(read["url"])
        except BadUrl as error:
            raise BadOption(f"option 'url': {error}") from None
    else:
        login = _hosts(read)
    if "username" in names:
        login = replace(login, username=read["username"])
    if "password" in names:
        login = replace(login, password=read["password"])
    if any(name.startswith("tls.") for name in names) and login.tls is None:
        raise BadOption("options 'tls.…' need TLS: write amqps:// in 'url', or set 'tls' to true")
    if login.tls is not None:
        login = replace(login, tls=_tls(read))
    return replace(login, heartbeat_s=read["heartbeat"], connect_timeout_ms=read["connectTimeoutMs"])


def _hosts(read: Mapping[str, Any]) -> Login:
    tls: bool = read["tls"]
    scheme, usual = ("amqps", TLS_PORT) if tls else ("amqp", PORT)
    hosts: list[Host] = []
    for text in read["host"].split(","):
        try:
            (host,) = parse_url(f"{scheme}://{text.strip()}").hosts
        except BadUrl:
            raise BadOption(f"option 'host' cannot be read: {text!r}") from None
        named_port = host.port != usual or text.rstrip().endswith(f":{usual}")
        hosts.append(host if named_port or read["port"] is None else Host(host.name, read["port"]))
    return Login(hosts=tuple(hosts), vhost=read["vhost"], tls=Tls() if tls else None)


def _tls(read: Mapping[str, Any]) -> Tls:
    if read["tls.keyFile"] is not None and read["tls.certFile"] is None:
        raise BadOption("option 'tls.keyFile' needs 'tls.certFile'")
    return Tls(
        ca_file=read["tls.caFile"],
        cert_file=read["tls.certFile"],
        key_file=read["tls.keyFile"],
        verify=read["tls.verify"],
        server_name=read["tls.serverName"],
    )
