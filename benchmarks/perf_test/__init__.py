"""RabbitMQ's own load generator, fetched by Maven when it is first needed.

https://perftest.rabbitmq.com
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ..client import HOST, Unexpected

HERE = Path(__file__).parent
JARS = HERE / ".cache"
FETCH_MAX_S = 300
#: Time that it may take beyond its run: for the virtual machine and some hundred connections.
OVERHEAD_MAX_S = 90
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
#: id: test-1, time 4.001 s, sent: 701 msg/s, …, received: 701 msg/s, …
INTERVAL = re.compile(r"time ([\d.]+) s, sent: (\d+) msg/s.*received: (\d+) msg/s")


def missing() -> str | None:
    """Return the missing program, or None."""
    found = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"{' and '.join(found)} not installed" if found else None


def fetch() -> None:
    """Raises Unexpected."""
    if JARS.exists():
        return
    command = ["mvn", "-q", "-B", COPY, "-DincludeScope=runtime", f"-DoutputDirectory={JARS}.new"]
    done = subprocess.run(command, cwd=HERE, timeout=FETCH_MAX_S, check=False, text=True, capture_output=True)
    if done.returncode:
        raise Unexpected(f"Maven cannot fetch PerfTest: {done.stdout[-500:]}")
    Path(f"{JARS}.new").rename(JARS)


def intervals(port: int, *options: str, seconds: int) -> Iterator[tuple[float, int, int]]:
    """Yield its output of each second: seconds since its start, messages sent and received in the last one.

    Raises Unexpected.
    """
    fetch()
    command = ["java", "-cp", f"{JARS}/*", "com.rabbitmq.perf.PerfTest"]
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
