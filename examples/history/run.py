"""Two weeks of events in a stream, which DuckDB and Spark read in its object store, without the broker.

    python examples/history/run.py [--events 1000000] [--directory DIRECTORY]

It needs what `pip install -e '.[spark,example,table]' duckdb` installs, and starts a broker of its own, whose
object store is the directory. The stream is a table (x-stream-table): its full segments are there as Parquet
files, too. The broker is stopped before DuckDB and Spark add up the days, and their sums are compared with
those of the events that were published.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a tree that is not installed will do

from examples.history.events import Day, days, event
from examples.spark import all_is_there, session

STREAM = "events"
COUNT, SEGMENT_BYTES = 300_000, 4_000_000
TRANSACTION = 5_000
END_S = 300.0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=COUNT, help="how many (%(default)s)")
    parser.add_argument("--segment-bytes", type=int, default=SEGMENT_BYTES, help="(%(default)s)")
    parser.add_argument("--directory", type=Path, help="the object store (one that is deleted at the end)")
    return parser.parse_args(arguments)


def publish(url: str, count: int, segment_bytes: int) -> None:
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        table = {
            "x-queue-type": "stream",
            "x-stream-remote": "archive",
            "x-stream-table": "parquet",
            "x-stream-max-segment-size-bytes": segment_bytes,
        }
        channel.queue_declare(STREAM, durable=True, arguments=table)
        channel.tx_select()
        for number in range(count):
            each = event(number, count)
            properties = pika.BasicProperties(
                content_type="application/json", type=each.kind, timestamp=int(each.at.timestamp())
            )
            channel.basic_publish("", STREAM, each.body, properties)
            if number % TRANSACTION == TRANSACTION - 1:
                channel.tx_commit()
        channel.tx_commit()


def wait_for_table(broker: Any) -> int:
    """Wait until the table has all full segments; return the offset behind its last message."""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        queue = broker.api("GET", f"/api/queues/%2F/{STREAM}")
        streams = broker.api("GET", "/api/stream-remotes")["streams"]
        # The segment that is being written is not full.
        full = queue["segments"] - 1
        if full and streams and streams[0]["segments"] == streams[0]["table_files"] == full:
            return int(queue["table_next_offset"])
        time.sleep(0.1)
    raise TimeoutError(f"the table is not complete after {END_S:.0f} s")


def by_duckdb(files: str) -> dict[date, Day]:
    import duckdb

    query = f"""
        SELECT CAST(publisher_timestamp AT TIME ZONE 'UTC' AS DATE) AS day,
               count(*), sum(CAST(json_extract(decode(value), '$.cents') AS BIGINT))
        FROM read_parquet('{files}')
        GROUP BY day ORDER BY day
    """
    return {day: Day(events, int(cents)) for day, events, cents in duckdb.execute(query).fetchall()}


def by_spark(directory: Path) -> dict[date, Day]:
    """Spark's own reader: the connector of mqd is not needed."""
    with spark() as started:
        events = started.read.parquet(str(directory))
        rows = events.selectExpr(
            "to_date(publisher_timestamp) AS day",
            "CAST(get_json_object(CAST(value AS STRING), '$.cents') AS BIGINT) AS cents",
        )
        found = rows.groupBy("day").agg({"*": "count", "cents": "sum"}).collect()
    return {row["day"]: Day(row["count(1)"], row["sum(cents)"]) for row in sorted(found)}


@contextmanager
def spark() -> Iterator[Any]:
    started = session("history")
    try:
        yield started
    finally:
        started.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if not all_is_there():
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary) / "store").absolute()
        return run(options, directory)


def run(options: argparse.Namespace, directory: Path) -> int:
    from mqd import testing

    with testing.start(stream_remotes=f"archive=file://{directory}") as broker:
        began = time.monotonic()
        publish(broker.amqp_url, options.events, options.segment_bytes)
        print(f"{options.events} events published in {time.monotonic() - began:.1f} s")
        stop = wait_for_table(broker)
        where = directory / broker.api("GET", f"/api/queues/%2F/{STREAM}")["table"]
    print(f"{stop} of them are in {where}, and the broker is stopped")
    due = days(0, stop, options.events)
    readers: dict[str, Callable[[], dict[date, Day]]] = {
        "DuckDB": partial(by_duckdb, f"{where}/*.parquet"),
        "Spark": partial(by_spark, where),
    }
    right = True
    for name, add_up in readers.items():
        began = time.monotonic()
        sums = add_up()
        print(f"{name}: {len(sums)} days, {sum(day.events for day in sums.values())} events, ", end="")
        print(f"{'right' if sums == due else 'WRONG'}, in {time.monotonic() - began:.1f} s")
        right = right and sums == due
    for day, sums_of_day in due.items():
        print(f"  {day}  {sums_of_day.events:8} events  {sums_of_day.cents / 100:12.2f}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
