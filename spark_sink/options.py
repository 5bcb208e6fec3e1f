"""Every option, declared once: what reads it, what it must be, what stands when it is not given.

Spark hands options over with names in any case and values as text. A name that nobody knows is an error that
names the nearest one: a mistyped `vHost` that is silently ignored sends the data elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from spark_sink import option_values as values
from spark_sink.client.login import PORT, TLS_PORT, BadUrl, Host, Login, Tls, parse_url
from spark_sink.option_values import EARLIEST, LATEST, BadOption, ByPartition, Offsets, StoreUrl, nearest

BOTH, SINK, SOURCE = ("sink", "source"), ("sink",), ("source",)
DAY_MS = 86_400_000

#: What Spark itself puts among the options of a query.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "path"})

Delivery = Literal["confirm", "exactly-once", "ledger", "tx", "none"]
Deduplication = Literal["auto", "broker", "ledger"]


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    read: Callable[[str, str], Any]
    default: Any
    sides: tuple[str, ...]
    meaning: str


INT32_MAX = 2**31 - 1

OPTIONS: tuple[Option, ...] = (
    Option(
        "url",
        values.text,
        None,
        BOTH,
        "amqp:// or amqps://user:password@host:5672/vhost; several hosts with commas are tried in turn",
    ),
    Option(
        "host",
        values.text,
        "localhost",
        BOTH,
        "instead of url; several with commas, each with its :port if it differs",
    ),
    Option("port", values.number(1, 65_535), None, BOTH, f"instead of url; {PORT}, with TLS {TLS_PORT}"),
    Option("vhost", values.text, "/", BOTH, "instead of url"),
    Option("username", values.short, "guest", BOTH, "beside url or host; beats the one in url"),
    Option("password", values.text, "guest", BOTH, "beside url or host; beats the one in url"),
    Option("tls", values.flag, False, BOTH, "TLS, where host is given; with url write amqps://"),
    Option(
        "tls.caFile",
        values.text,
        None,
        BOTH,
        "certificates that the broker's must be signed by; else the system's",
    ),
    Option("tls.certFile", values.text, None, BOTH, "the client's certificate"),
    Option("tls.keyFile", values.text, None, BOTH, "its key"),
    Option("tls.verify", values.flag, True, BOTH, "whether the broker's certificate and name are checked"),
    Option(
        "tls.serverName", values.text, None, BOTH, "the name that the certificate must hold; else the host"
    ),
    Option("heartbeat", values.number(1, 65_535), 60, BOTH, "seconds; the broker may ask for less"),
    Option("connectTimeoutMs", values.number(1, INT32_MAX), 10_000, BOTH, "for each host, until logged in"),
    Option(
        "exchange",
        values.short,
        "",
        SINK,
        "where messages go; empty: the default exchange, the routing key is the queue",
    ),
    Option("routingKey", values.short, None, SINK, "for rows without a routing_key of their own"),
    Option("mandatory", values.flag, True, SINK, "whether a message that no queue takes fails the task"),
    Option("deliveryMode", values.number(1, 2), 2, SINK, "2: kept on disk by durable queues; 1: not"),
    Option(
        "delivery",
        values.choice("confirm", "exactly-once", "ledger", "tx", "none"),
        "confirm",
        SINK,
        "what holds when something dies; see Delivery",
    ),
    Option(
        "deduplication",
        values.choice("auto", "broker", "ledger"),
        "auto",
        SINK,
        "with exactly-once: who drops duplicates; broker needs queues with x-deduplication",
    ),
    Option(
        "maxInFlight",
        values.number(1, 1_000_000),
        5_000,
        SINK,
        "messages sent and not yet confirmed, for each task",
    ),
    Option(
        "confirmTimeoutMs",
        values.number(1, INT32_MAX),
        60_000,
        SINK,
        "how long a task goes without a confirm before it fails; reconnecting included",
    ),
    Option(
        "messageId",
        values.choice("auto", "none"),
        "auto",
        SINK,
        "auto: `<query or job>/<batch>/<partition>/<row>`",
    ),
    Option(
        "txnAppId",
        values.short,
        None,
        SINK,
        "exactly-once for batch writes: the name of the writing application",
    ),
    Option(
        "txnVersion",
        values.number(0, INT32_MAX),
        None,
        SINK,
        "and a number that rises with each write; foreachBatch's batch id",
    ),
    Option(
        "ledgerExpiresMs",
        values.number(60_000, 10 * 365 * DAY_MS),
        7 * DAY_MS,
        SINK,
        "how long a ledger outlives its last use; no query may rest for longer",
    ),
    Option(
        "ignoreUnknownColumns",
        values.flag,
        False,
        SINK,
        "whether columns that mean nothing here are left out",
    ),
    Option(
        "maxMessageBytes",
        values.number(1, INT32_MAX),
        16 << 20,
        SINK,
        "the longest body; no more than the broker takes",
    ),
    Option(
        "packing",
        values.choice("none", "arrow"),
        "none",
        SINK,
        "arrow: many rows in one message, as an Arrow IPC stream compressed by zstd",
    ),
    Option(
        "packRows", values.number(1, 1_000_000), 10_000, SINK, "with packing: the most rows of one message"
    ),
    Option("queue", values.short, None, SOURCE, "a classic or quorum queue that is read"),
    Option(
        "stream",
        values.short,
        None,
        BOTH,
        "a stream or a super stream; read: instead of queue; written: instead of exchange and routingKey, the column "
        "routing_key being the key that chooses the partition",
    ),
    Option(
        "streams",
        values.names,
        (),
        SOURCE,
        "several streams and super streams, with commas; instead of stream",
    ),
    Option(
        "streamsPattern",
        values.pattern,
        None,
        SOURCE,
        "a regular expression for whole names: all streams and super streams that match, new ones too; needs managementUrl",
    ),
    Option(
        "assign",
        values.assignment,
        None,
        SOURCE,
        'some partitions only: JSON such as `{"orders": [0, 1]}`; instead of stream',
    ),
    Option(
        "managementUrl",
        values.http_urls,
        (),
        SOURCE,
        "streamsPattern: where to ask for the names, such as http://host:15672; several with commas are tried in turn, "
        "https with the options tls.… The user needs a tag for the management API",
    ),
    Option(
        "maxMessagesPerTrigger",
        values.number(1, 10_000_000),
        50_000,
        SOURCE,
        "queues: the most messages of one micro-batch",
    ),
    Option(
        "prefetch",
        values.number(1, 65_535),
        None,
        SOURCE,
        "unacked messages that the broker sends ahead; from maxMessagesPerTrigger, of a stream 20000",
    ),
    Option("exclusive", values.flag, True, SOURCE, "queues: whether the query is the queue's only consumer"),
    Option(
        "ack",
        values.choice("none", "onRead"),
        "none",
        SOURCE,
        "queues, batch reads: none leaves the messages in the queue",
    ),
    Option(
        "maxMessages", values.number(1, INT32_MAX), None, SOURCE, "queues, batch reads: stop after so many"
    ),
    Option(
        "startingOffsets",
        values.offsets,
        None,
        SOURCE,
        "streams: earliest (batches), latest (queries) or JSON, the offset of each partition; -2 and -1 stand for "
        "earliest and latest. A query that has a checkpoint goes on from that",
    ),
    Option(
        "startingTimestamp",
        values.moment,
        None,
        SOURCE,
        "streams: instead of startingOffsets; ms since 1970, or as 2026-01-31T12:00:00+00:00",
    ),
    Option(
        "startingOffsetsByTimestamp",
        values.moments,
        None,
        SOURCE,
        "streams: the same for each partition, in JSON",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        values.choice("error", "latest"),
        "error",
        SOURCE,
        "streams: what a partition does that has no message at or after the starting time; latest: it begins with the "
        "next message",
    ),
    Option(
        "endingOffsets",
        values.offsets,
        None,
        SOURCE,
        "streams, batch reads: latest or JSON, where each partition ends; that offset is not read",
    ),
    Option(
        "endingTimestamp",
        values.moment,
        None,
        SOURCE,
        "streams, batch reads: instead of endingOffsets; messages from this time on are not read",
    ),
    Option(
        "endingOffsetsByTimestamp",
        values.moments,
        None,
        SOURCE,
        "streams, batch reads: the same for each partition, in JSON",
    ),
    Option(
        "maxOffsetsPerTrigger",
        values.number(1, 2**62),
        None,
        SOURCE,
        "streams: the most messages of one micro-batch, shared out among partitions by what each has; else all",
    ),
    Option(
        "minOffsetsPerTrigger",
        values.number(1, 2**62),
        None,
        SOURCE,
        "streams: wait for so many messages before a micro-batch, but no longer than maxTriggerDelay",
    ),
    Option(
        "maxTriggerDelay",
        values.duration_ms,
        15 * 60_000,
        SOURCE,
        "streams: how long messages may wait for minOffsetsPerTrigger; a number and ms, s, m, h or d",
    ),
    Option(
        "minPartitions",
        values.number(1, 100_000),
        None,
        SOURCE,
        "streams: tasks to cut a read into, where there are fewer partitions",
    ),
    Option(
        "maxRecordsPerPartition",
        values.number(1, 2**62),
        None,
        SOURCE,
        "streams: the most messages of a task; a longer range is cut. A batch read has 1000000 by itself",
    ),
    Option(
        "failOnDataLoss",
        values.flag,
        True,
        SOURCE,
        "whether messages that a checkpoint or an offset names and that are gone fail the query",
    ),
    Option(
        "redeliveryTimeoutMs",
        values.number(1, INT32_MAX),
        30_000,
        SOURCE,
        "how long the broker may say that nothing is left before messages that are due count as missing",
    ),
    Option(
        "history",
        values.store,
        None,
        SOURCE,
        "streams with x-stream-table: the URL of the object store, as the broker's stream_remotes has it, or its "
        "directory; what the tables have is read from their files, the rest from the broker",
    ),
    Option("includeHeaders", values.flag, True, SOURCE, "whether there is a column headers"),
)


_FOR_QUEUES = ("maxMessagesPerTrigger", "exclusive", "ack", "maxMessages")
_SOURCES = ("queue", "stream", "streams", "streamsPattern", "assign")
#: Options that say the same; only one of them may be given.
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_FOR_QUERIES_ON_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_FOR_STREAMS = (
    *_STARTS,
    *_ENDS,
    *_FOR_QUERIES_ON_STREAMS,
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "managementUrl",
    "history",
)
#: Options that do nothing without one of the others.
_NEEDS = {
    "startingOffsetsByTimestampStrategy": ("startingTimestamp", "startingOffsetsByTimestamp"),
    "maxTriggerDelay": ("minOffsetsPerTrigger",),
    "managementUrl": ("streamsPattern",),
    "streamsPattern": ("managementUrl",),
}


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
    #: Empty if streams are read.
    queue: str
    #: Empty if a queue is read, or if a pattern chooses the streams.
    streams: tuple[str, ...]
    streams_pattern: str | None
    #: The partitions of each stream that are read; None: all.
    assign: Mapping[str, tuple[int, ...]] | None
    management_url: tuple[str, ...]
    #: For URLs with https.
    management_tls: Tls
    starting_offsets: Offsets | None
    #: Milliseconds since 1970.
    starting_timestamp: int | None
    starting_offsets_by_timestamp: ByPartition | None
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"]
    ending_offsets: Offsets | None
    ending_timestamp: int | None
    ending_offsets_by_timestamp: ByPartition | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    #: Milliseconds.
    max_trigger_delay: int
    min_partitions: int | None
    max_records_per_partition: int | None
    max_messages_per_trigger: int
    #: None: chosen from max_messages_per_trigger.
    prefetch: int | None
    exclusive: bool
    ack: Literal["none", "onRead"]
    max_messages: int | None
    fail_on_data_loss: bool
    redelivery_timeout_ms: int
    #: Where the tables of the streams are; None: all is read from the broker.
    history: StoreUrl | None
    include_headers: bool

    @property
    def of_streams(self) -> bool:
        return not self.queue


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
    _only_one(given, _SOURCES, "are two sources")
    sources = _given(given, *_SOURCES)
    if not sources or not read[sources[0]]:
        raise BadOption(
            "option 'queue' is missing: name the queue to read from, or a stream by option 'stream'"
        )
    of_streams = sources != ["queue"]
    for name in _given(given, *(_FOR_QUEUES if of_streams else _FOR_STREAMS)):
        kind, other = ("stream", "queue") if of_streams else ("queue", "stream")
        raise BadOption(f"option '{name}' cannot be used for a {kind}: it belongs to option '{other}'")
    _only_one(given, _STARTS, "say the same")
    _only_one(given, _ENDS, "say the same")
    for name, others in _NEEDS.items():
        if _given(given, name) and not _given(given, *others):
            known = "' or '".join(others)
            raise BadOption(f"option '{name}' does something only with option '{known}': set that too")
    if read["endingOffsets"] == "earliest" or EARLIEST in _given_offsets(read["endingOffsets"]):
        raise BadOption("option 'endingOffsets' cannot be earliest: nothing would be read")
    least, most = read["minOffsetsPerTrigger"], read["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise BadOption(
            f"option 'minOffsetsPerTrigger' is {least}, and 'maxOffsetsPerTrigger' only {most}: a micro-batch would "
            "never be large enough"
        )
    begin, end = read["startingTimestamp"], read["endingTimestamp"]
    if begin is not None and end is not None and begin > end:
        raise BadOption("option 'endingTimestamp' is before 'startingTimestamp': nothing would be read")
    read["queue"] = read["queue"] or ""
    if read["stream"]:
        read["streams"] = (read["stream"],)
    elif read["assign"] is not None:
        read["streams"] = tuple(read["assign"])
    for name in (*_STARTS, *_ENDS):
        _check_names(name, read[name], read["streams"])
    read["managementTls"] = _tls(read)
    return _make(SourceOptions, _login(given, read), read)


def _only_one(given: Mapping[str, str], alternatives: Iterable[str], what: str) -> None:
    first, *others = _given(given, *alternatives) or [""]
    if others:
        raise BadOption(f"options '{first}' and '{others[0]}' {what}: give one of them")


def _check_names(option: str, given: object, streams: tuple[str, ...]) -> None:
    """Check that JSON is about these streams; the partitions are known later, and so are all streams of a
    pattern.
    """
    if not isinstance(given, dict):
        return
    if "" in given and len(streams) != 1:
        raise BadOption(
            f"option '{option}' has to name the streams, as several may be read: "
            f'{{"orders": {{"0": …}}}} instead of {{"0": …}}'
        )
    if streams and (unknown := sorted(given.keys() - {"", *streams})):
        raise BadOption(
            f"option '{option}' names stream '{unknown[0]}', which is not read{nearest(unknown[0], streams)}"
        )


def query_options(given: Mapping[str, str]) -> SourceOptions:
    """As source_options, for `spark.readStream`. Raises BadOption."""
    options = source_options(given)
    for name in _given(given, "ack", "maxMessages"):
        raise BadOption(
            f"option '{name}' is for spark.read: a query acks what Spark has committed, and goes on until it is stopped"
        )
    for name in _given(given, *_ENDS):
        raise BadOption(f"option '{name}' is for spark.read: a query has no end")
    return options


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """As source_options, for `spark.read`. Raises BadOption."""
    options = source_options(given)
    for name in _given(given, *_FOR_QUERIES_ON_STREAMS, "maxMessagesPerTrigger"):
        raise BadOption(f"option '{name}' is for spark.readStream: a batch read has no triggers")
    if options.starting_offsets == "latest" or LATEST in _given_offsets(options.starting_offsets):
        raise BadOption("option 'startingOffsets' cannot be latest in a batch read: nothing would be read")
    return options


def _given(given: Mapping[str, str], *wanted: str) -> list[str]:
    """Return which of these options are given."""
    lower = {name.lower() for name in given}
    return [name for name in wanted if name.lower() in lower]


def _given_offsets(found: Offsets | None) -> Iterable[int]:
    by_partition = found.values() if isinstance(found, dict) else ()
    return [offset for each in by_partition for offset in each.values()]


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
    needs_tls = login.tls is not None or any(url.startswith("https:") for url in read["managementUrl"])
    if any(name.startswith("tls.") for name in names) and not needs_tls:
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
