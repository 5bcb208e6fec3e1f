"""Write the figures of one run to the documents: tables of the README, docs/performance.md and
docs/streams.md, and the picture.

    python -m benchmarks.publish [benchmarks/results/bench.json]

Only a whole run of `make bench` will do: all scenarios, against both brokers, not the quick form. A run with
`--brokers mqd,kafka` fills the table beside Kafka in docs/performance.md, and one with `--of-readme
--rabbitmq-root` only the table of the README.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from .kafka import Kafka
from .plot import write_plot
from .report import number
from .scenarios import KAFKA_SCENARIOS, SCENARIOS
from .scenarios.scenario import CPU_US

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- figures: python -m benchmarks.publish -->", "<!-- end of figures -->"
BEGIN_BESIDE_KAFKA = "<!-- figures beside Kafka: python -m benchmarks.publish -->"
#: Lines of prose are at most this long.
COLUMNS = 110
#: Scenario, figure and its title in the README: good figures, and bad ones.
README_ROWS = (
    ("transient-128", "deliveries/s", "transient messages, auto-ack, 128 B (msg/s)"),
    ("transient-1m", "deliveries/s", "the same, 1 MiB"),
    ("durable", "deliveries/s", "durable, persistent, confirms, acks one by one (msg/s)"),
    ("fanout-10", "deliveries/s", "fanout to 10 queues (deliveries/s)"),
    ("latency-5000", "delivery p99 ms", "delivery at 5,000 msg/s, p99 (ms)"),
    ("closed-loop-100-durable", "loops/s", "100 clients with one durable message each under way (loops/s)"),
    ("backlog", "B each", "a queued message (bytes of memory)"),
    ("cluster-one-queue", "deliveries/s", "three nodes, one quorum queue, confirms, acks (msg/s)"),
    ("cluster-latency", "confirm p99 ms", "three nodes, a confirm at 2,000 msg/s, p99 (ms)"),
    ("cluster-failover", "s", "three nodes, longest time without a confirm after kill -9 of the leader (s)"),
)
#: The scenarios of these.
OF_README = tuple(dict.fromkeys(scenario for scenario, _, _ in README_ROWS))
#: The same for docs/streams.md.
STREAM_ROWS = (
    ("stream", "append msg/s", "append, confirmed, one publisher (msg/s)"),
    ("stream", "replay msg/s", "replay from `first`, one consumer (msg/s)"),
    ("stream", "ten consumers msg/s", "the same, ten consumers together (msg/s)"),
    (
        "super-stream",
        "append msg/s",
        "super stream of three partitions, 100 keys in turn: append, confirmed (msg/s)",
    ),
    ("stream-latency", "stream p99 ms", "delivery at 5,000 msg/s, p99 (ms)"),
    ("group-members", "msg/s, group", "a group of four members over eight partitions (msg/s)"),
    ("cluster-stream", "append msg/s", "three nodes: append, confirmed, one publisher (msg/s)"),
)
#: The same beside Kafka.
KAFKA_ROWS = (
    ("kafka-append-128", "append msg/s", "append, one producer, 128 B; Kafka as it comes (msg/s)"),
    ("kafka-append-128", "replay msg/s", "read from the first one, one consumer (msg/s)"),
    ("kafka-append-128", "replay, broker CPU µs", "the broker's CPU for a message that is read (µs)"),
    ("kafka-append-128-synced", "append msg/s", "append, 128 B; Kafka syncs each batch, as mqd does (msg/s)"),
    ("kafka-append-1024", "append msg/s", "append, one producer, 1 KiB; Kafka as it comes (msg/s)"),
    ("kafka-append-1024", "replay msg/s", "read from the first one, one consumer (msg/s)"),
    ("kafka-append-1024", "replay, broker CPU µs", "the broker's CPU for a message that is read (µs)"),
    (
        "kafka-append-1024-synced",
        "append msg/s",
        "append, 1 KiB; Kafka syncs each batch, as mqd does (msg/s)",
    ),
    ("kafka-latency", "delivery p50 ms", "delivery at 5,000 msg/s, p50 (ms)"),
    ("kafka-latency", "delivery p99 ms", "the same, p99 (ms)"),
    ("kafka-transactions-2", "messages/s", "transactions of 100 messages, two clients (msg/s)"),
    ("kafka-transactions-16", "messages/s", "the same, 16 clients (msg/s)"),
)
#: Figures of reading, where the CPU of the scenario is that of appending.
WITHOUT_CPU = ("replay msg/s", "ten consumers msg/s", "replay, broker CPU µs")
PEER = "rabbitmq"
TITLES = {PEER: "RabbitMQ", Kafka.name: "Kafka"}

Document = Mapping[str, Any]
Record = Mapping[str, Any]


class Incomplete(Exception):
    """The text says what the run lacks."""


def check(document: Document) -> None:
    """Raises Incomplete."""
    if document["settings"]["quick"]:
        raise Incomplete("it is of --quick")
    mqd, _, peers = document["settings"]["brokers"].partition(",")
    if mqd != "mqd" or not re.fullmatch(rf"{PEER}(,{PEER}-[^,]+)?|{Kafka.name}", peers):
        raise Incomplete(f"it is of the brokers {document['settings']['brokers']}")
    found = {record["scenario"] for record in document["figures"] if record["mqd"] is not None}
    wanted = [each.name for each in (KAFKA_SCENARIOS if is_beside_kafka(document) else SCENARIOS)]
    missing = [
        name
        for name in wanted
        if name not in found and (name in OF_README or not document["settings"]["of_readme"])
    ]
    if missing:
        raise Incomplete(f"it has no figures of {', '.join(missing)}")


def is_beside_kafka(document: Document) -> bool:
    return Kafka.name in peers_of(document)


def peers_of(document: Document) -> list[str]:
    return str(document["settings"]["brokers"]).split(",")[1:]


def titles_of(document: Document) -> list[str]:
    """Return the names of the peers in a table: with versions, if there are two of them."""
    peers = peers_of(document)
    versions = document["settings"].get("versions", {})
    if len(peers) > 1:
        return [f"{TITLES[PEER]} {versions[peer]}" for peer in peers]
    return [TITLES[peer] for peer in peers]


def head(document: Document) -> str:
    columns = ["", "mqd", *titles_of(document), "times better", "times less CPU"]
    return _heading(columns, ["---", *["---:"] * (len(columns) - 1)])


def long_head(document: Document) -> str:
    titles = titles_of(document)
    beside = [cell for title in titles for cell in (title, "ratio")]
    columns = ["", "", "mqd", *beside, "wanted", f"CPU µs, {' / '.join(['mqd', *titles])}"]
    return _heading(columns, ["---", "---", "---:", *["---:"] * len(beside), "---", "---:"])


def _heading(columns: Sequence[str], marks: Sequence[str]) -> str:
    names = " | ".join(columns).replace("|  |", "| |").strip()
    return f"| {names} |\n| {' | '.join(marks)} |"


def short_table(document: Document, rows: Sequence[tuple[str, str, str]]) -> str:
    by_name = {(record["scenario"], record["figure"]): record for record in document["figures"]}
    peers = peers_of(document)
    lines = [head(document)]
    for scenario, figure, title in rows:
        record = by_name[scenario, figure]
        values = " | ".join(number(record.get(broker)) for broker in ("mqd", *peers))
        better = _together([_better(record, peer) for peer in peers])
        less_cpu = (
            ""
            if figure in WITHOUT_CPU
            else _together([_less_cpu(document, scenario, peer) for peer in peers])
        )
        lines.append(f"| {title} | {values} | {better} | {less_cpu} |")
    return "\n".join([*lines, "", _run(document)])


def long_table(document: Document) -> str:
    peers = peers_of(document)
    lines = [long_head(document)]
    before = None
    for record in document["figures"]:
        scenario = record["scenario"]
        first = scenario != before
        before = scenario
        title, cpu = (record["title"], _cpu(document, scenario)) if first else ("", "")
        beside = " | ".join(f"{number(record.get(peer))} | {_ratio(record, peer)}" for peer in peers)
        lines.append(
            f"| {title} | {record['figure']} | {number(record['mqd'])} | {beside} | {record['bar'] or ''} | {cpu} |"
        )
    return "\n".join([_run(document), "", *lines, "", _missed(document)])


def ratio_to(record: Record, peer: str) -> float | None:
    mqd, other = record["mqd"], record.get(peer)
    return mqd / other if mqd is not None and other else None


def _ratio(record: Record, peer: str) -> str:
    """Bold if mqd misses the target, which is about the first peer."""
    ratio = ratio_to(record, peer)
    told = number(ratio) if ratio is not None else ""
    return f"**{told}**" if told and peer == PEER and record["met"] is False else told


def _better(record: Record, peer: str) -> str:
    """Return how many times better mqd is, also where less is better: then the target is an upper limit."""
    ratio = ratio_to(record, peer)
    if not ratio:
        return ""
    return number(1 / ratio if "≤" in (record["bar"] or "") else ratio)


def _less_cpu(document: Document, scenario: str, peer: str) -> str:
    own, other = (_median_cpu(document, scenario, broker) for broker in ("mqd", peer))
    return number(other / own) if own and other else ""


def _together(cells: Sequence[str]) -> str:
    return " / ".join(cell or "-" for cell in cells) if any(cells) else ""


def _median_cpu(document: Document, scenario: str, broker: str) -> float | None:
    rounds = document["rounds"][scenario].get(broker, {"rounds": []})["rounds"]
    found = [one[CPU_US] for one in rounds if CPU_US in one]
    return median(found) if found else None


def _cpu(document: Document, scenario: str) -> str:
    found = [_median_cpu(document, scenario, broker) for broker in ("mqd", *peers_of(document))]
    return " / ".join(map(number, found)) if any(found) else ""


def _run(document: Document) -> str:
    machine, settings = document["machine"], document["settings"]
    return fill(
        f"One run of {machine['date']}, medians: {machine['cores']} cores, CPython {machine['python']}, client and brokers"
        f" on the same machine in turns, {settings['seconds'] / 60:.0f} minutes.",
        COLUMNS,
    )


def _missed(document: Document) -> str:
    missed = [record for record in document["figures"] if record["met"] is False]
    if not missed:
        return "All figures are as wanted."
    names = "; ".join(f"{record['title']}, {record['figure']} ({record['bar']})" for record in missed)
    return fill(f"Not as wanted, {len(missed)} in number, red in the picture: {names}.", COLUMNS)


def replaced(text: str, figures: str, begin: str = BEGIN) -> str:
    pattern = re.compile(f"({re.escape(begin)}\n).*?({re.escape(END)})", re.DOTALL)
    if not pattern.search(text):
        raise Incomplete(f"the page has no {begin}")
    return pattern.sub(lambda found: f"{found[1]}{figures}\n{found[2]}", text)


def publish(document: Document, root: Path = ROOT) -> Sequence[Path]:
    """Raises Incomplete, and changes nothing then."""
    check(document)
    if is_beside_kafka(document):
        page = root / "docs" / "performance.md"
        page.write_text(replaced(page.read_text(), short_table(document, KAFKA_ROWS), BEGIN_BESIDE_KAFKA))
        return [page]
    readme, docs = root / "README.md", root / "docs"
    if document["settings"]["of_readme"]:
        readme.write_text(replaced(readme.read_text(), short_table(document, README_ROWS)))
        return [readme]
    page, streams, picture = docs / "performance.md", docs / "streams.md", docs / "figures"
    shown = "![mqd and RabbitMQ side by side, one bar a figure](figures/bench.png)"
    texts = {
        readme: replaced(readme.read_text(), short_table(document, README_ROWS)),
        streams: replaced(streams.read_text(), short_table(document, STREAM_ROWS)),
        page: replaced(page.read_text(), f"{long_table(document)}\n\n{shown}"),
    }
    picture.mkdir(exist_ok=True)
    write_plot(picture / "bench.png", document["figures"])
    for path, text in texts.items():
        path.write_text(text)
    return [*texts, picture / "bench.png"]


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks" / "results" / "bench.json"
    try:
        written = publish(json.loads(path.read_text()))
    except (OSError, ValueError, Incomplete) as failure:
        print(f"{path} cannot be published: {failure}", file=sys.stderr)
        return 2
    print("written:", *(each.relative_to(ROOT) for each in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
