"""RabbitMQ's own load generator, fetched by Maven when it is first needed.

https://perftest.rabbitmq.com
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ..client import HOST, Unexpected
from ..maven import fetched

HERE = Path(__file__).parent
#: Time that it may take beyond its run: for the virtual machine and some hundred connections.
OVERHEAD_MAX_S = 90
#: id: test-1, time 4.001 s, sent: 701 msg/s, …, received: 701 msg/s, …
INTERVAL = re.compile(r"time ([\d.]+) s, sent: (\d+) msg/s.*received: (\d+) msg/s")


def intervals(port: int, *options: str, seconds: int) -> Iterator[tuple[float, int, int]]:
    """Yield its output of each second: seconds since its start, messages sent and received in the last one.

    Raises Unexpected.
    """
    command = ["java", "-cp", f"{fetched(HERE)}/*", "com.rabbitmq.perf.PerfTest"]
    command += ["--uri", f"amqp://guest:guest@{HOST}:{port}", "--time", str(seconds), *options]
    said: deque[str] = deque(maxlen=20)
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        watch = threading.Timer(seconds + OVERHEAD_MAX_S, process.kill)
        watch.start()
        try:
            for line in process.stdout:
                said.append(line)
                if found := INTERVAL.search(line):
                    yield float(found[1]), int(found[2]), int(found[3])
        finally:
            watch.cancel()
            if sys.exc_info()[0]:
                process.kill()
    if process.returncode:
        raise Unexpected(f"PerfTest ended with {process.returncode}: {''.join(said)}")
