"""Orders in a super stream → revenue by Spark → a compacted stream that is a table; the driver is killed in
the middle.

    python examples/shop/run.py [--url amqp://guest:guest@127.0.0.1:5672/]

It needs a running broker (`make run`) and what `pip install -e '.[spark,example]'` installs. Orders go to the
super stream `shop.orders`. Spark adds them up by product and minute, with a watermark, and writes what has
changed to the super stream `shop.revenue`, which keeps the latest row of each key. A driver of its own runs
the query until it is killed with -9 in a micro-batch; then more orders come, and this process goes on from
the checkpoint. At the end the table is read back and compared with the orders: nothing may be lost, and
nothing counted twice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a tree that is not installed will do

from examples.shop.names import ORDERS, REVENUE
from examples.shop.orders import Total, differences, orders, totals
from examples.spark import ROOT, all_is_there, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, BATCHES = 6_000, 16
END_S = 300.0


class Driver:
    """A Spark driver that runs the query, with a JVM of its own."""

    def __init__(self, url: str, checkpoint: Path, most: int) -> None:
        self._checkpoint = checkpoint
        command = [sys.executable, "-m", "examples.shop.query", url, str(checkpoint), str(most)]
        # The JVM belongs to its session, so both are killed at once.
        self._process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    def kill_in(self, batch: int) -> bool:
        """Kill -9 as soon as this micro-batch has been planned; return whether it was still running."""
        deadline = time.monotonic() + END_S
        try:
            while not (self._checkpoint / "offsets" / str(batch)).exists():
                if (code := self._process.poll()) is not None:
                    raise RuntimeError(f"the driver ended with code {code}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the query did not come to batch {batch} within {END_S:.0f} s")
                time.sleep(0.01)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return not (self._checkpoint / "commits" / str(batch)).exists()


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", default="amqp://guest:guest@127.0.0.1:5672/", help="the broker (%(default)s)"
    )
    parser.add_argument("--orders", type=int, default=COUNT, help="how many (%(default)s)")
    parser.add_argument(
        "--batches", type=int, default=BATCHES, help="micro-batches for all of them (%(default)s)"
    )
    parser.add_argument("--picture", type=Path, default=Path("shop.png"), help="where it goes (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Use this session if there is one already."""
    options = parsed(arguments)
    if not all_is_there():
        return 2

    # They need the packages that were checked above.
    from examples.shop.broker import publish, set_up, table
    from examples.shop.picture import draw

    set_up(options.url)
    sent = list(orders(options.orders))
    half = len(sent) // 2
    most = -(-len(sent) // options.batches)
    publish(options.url, sent[:half])
    print(f"{half} orders are in the super stream '{ORDERS}'", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="shop-"))
    try:
        batch = options.batches // 4
        under_way = Driver(options.url, directory / "checkpoint", most).kill_in(batch)
        before = table(options.url)
        print(
            f"kill -9 of the driver {'in the middle of' if under_way else 'after'} batch {batch}; "
            f"the table has {len(before)} rows",
            flush=True,
        )
        publish(options.url, sent[half:])
        print(
            f"{len(sent) - half} more orders came; the query goes on from its checkpoint, elsewhere",
            flush=True,
        )
        found, told = finish(spark or session("shop"), options.url, directory / "checkpoint", most)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if spark is None:
            stop()
    print(told)
    due = totals(sent)
    wrong = differences(due, found)
    for line in wrong[:10]:
        print(f"WRONG {line}", file=sys.stderr)
    if wrong:
        return 1
    draw(options.picture, due, before, found)
    print(
        f"{len(found)} rows have all {sum(each.orders for each in found)} orders once, "
        f"{sum(each.cents for each in found) / 100:,.2f} €; {options.picture}"
    )
    return 0


def finish(spark: SparkSession, url: str, checkpoint: Path, most: int) -> tuple[list[Total], str]:
    """Run the query to the end of the orders; return the table, and its remaining updates."""
    from pyspark.sql import functions as f

    from examples.shop import query

    running = query.start(spark, url, checkpoint, most, available_now=True)
    if not running.awaitTermination(int(END_S)):
        raise TimeoutError(f"the query did not end within {END_S:.0f} s")
    updates = query.messages(spark, url).cache()
    found = query.rows(query.table(updates))
    ends = (
        updates.groupBy("partition").agg(f.count("*").alias("left"), f.max("offset").alias("last")).collect()
    )
    updates.unpersist()
    written = sum(row.last + 1 for row in ends)
    left = sum(row.left for row in ends)
    return (
        found,
        f"{written} updates of the table were written to '{REVENUE}'; compaction has left {left} so far",
    )


def stop() -> None:
    """Stop the session that was begun here, if there is one."""
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        active.stop()


if __name__ == "__main__":
    sys.exit(main())
