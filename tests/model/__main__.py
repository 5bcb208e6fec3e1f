"""`python -m tests.model`: programs by chance against real brokers, judged by the model.

--seconds 60 --nodes 1 --seed 0      as many programs as there is time for
--file FILE                          a program that failed
--workers 2                          nodes of so many processes
--amqp-url URL --http-url URL        against any broker instead of mqd
--planted NAME                       against an mqd with a planted bug
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

from conformance_tests.patience import PATIENCE_S
from tests.model import differences, planted
from tests.model.brokers import Foreign, MqdNode, MqdNodes, Operated
from tests.model.campaign import Campaign, Failure
from tests.model.programs import Program

#: What a broker has that is not mqd.
FOREIGN = {
    "kind": "classic|quorum|stream",
    "fault": "none",
    "deduplication": "no",
    "groups": "no",
    "level": "none",
    "producer": "none",
    "timeout": "none",
    "delay": "none",
    "pause": "none",
    "compaction": "no",
    "retention": "no",
    "settle": "ack|multiple|requeue|discard|recover|close|abort",
    "consume": "get|prefetch 1|prefetch 3|global|no-ack|exclusive|priorities",
    "limit": "none",
    "exchange": "default|direct|fanout|topic|headers|chain|alternate",
}


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--workers", type=int, help="processes of each node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=0, help="at most so many")
    parser.add_argument("--file", "--program", dest="file", type=Path)
    parser.add_argument("--amqp-url")
    parser.add_argument("--http-url")
    parser.add_argument("--planted", choices=sorted(planted.BUGS), help="an mqd with this bug")
    parser.add_argument(
        "--within", action="append", default=[], metavar="NAME=VALUE", help="only rows with this choice"
    )
    parser.add_argument(
        "--keep", type=Path, default=Path("build/model"), help="where programs that failed are kept"
    )
    parser.add_argument("--patience", type=float, default=min(20.0, PATIENCE_S))
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="REGEX", help="failures to pass over"
    )
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--shrink", action="store_true", help="make the program of --file smaller")
    parser.add_argument("--no-shrink", action="store_true")
    return parser.parse_args(words)


def broker_of(asked: argparse.Namespace, *, old: bool = False, pure: bool = False) -> Operated:
    if asked.amqp_url:
        return Foreign(asked.amqp_url, asked.http_url)
    program, environment = planted.started_with(asked.planted)
    if asked.nodes == 3:
        return MqdNodes(program, environment, old=old, pure=pure, workers=asked.workers)
    return MqdNode(program, environment, old=old, pure=pure, workers=asked.workers or 1)


def main(words: list[str]) -> int:
    asked = arguments(words)
    if asked.file:
        asked.nodes = Program.read(asked.file).nodes
    campaign = Campaign(partial(broker_of, asked), asked.nodes, asked.seed, asked.keep, asked.patience)
    began = time.monotonic()
    try:
        if asked.file:
            program = Program.read(asked.file)
            found = campaign.judge(program)
            if found is not None and asked.shrink:
                failure = Failure(program, str(found), 0, 1)
                campaign.shrink(failure)
                print(failure.program.dumps())
            print(found or "nothing is wrong")
            return int(found is not None)
        within = dict(each.split("=", 1) for each in asked.within)
        if asked.amqp_url:
            within = {**FOREIGN, **within}
        known: Counter[str] = Counter()
        for failure in campaign.run(asked.seconds, asked.programs, within):
            excuse = differences.known(campaign.product, failure)
            excuse = excuse or next((each for each in asked.ignore if re.search(each, failure.text)), None)
            if excuse is not None:
                known[excuse] += 1
                continue
            print(
                f"FAILED seed {failure.program.seed} after {failure.after_s:.0f} s, {failure.programs} programs: {failure.text}"
            )
            if not asked.no_shrink:
                campaign.shrink(failure)
            print(f"  {len(failure.program.steps)} steps kept in {campaign.keep(failure)}", flush=True)
            asked.failures -= 1
            if asked.failures <= 0:
                break
        for excuse, count in known.items():
            print(f"known difference, {count} times: {excuse}")
        print(campaign.report(time.monotonic() - began))
        return int(asked.failures <= 0)
    finally:
        campaign.close()


def _end(*_: object) -> None:
    sys.exit(143)


if __name__ == "__main__":
    # Its brokers end with it, and their disks are unmounted.
    signal.signal(signal.SIGTERM, _end)
    raise SystemExit(main(sys.argv[1:]))
