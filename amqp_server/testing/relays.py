"""The network connections between the nodes of a cluster, which tests may cut: they run through the process
`proxy`.

Packet filters and network namespaces would need root. Instead, each node dials the others at a port of the
proxy.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from typing import Any

ANSWER_TIMEOUT_S = 30.0


class Relays:
    """Controls the proxy process; `answer_timeout_s` is the time that it may take to answer."""

    def __init__(self, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._answer_timeout_s = answer_timeout_s
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "amqp_server.testing.proxy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C must reach only the tests. The proxy ends when its stdin closes.
            start_new_session=True,
        )

    def open(self, dialler: str, dialled: str, port: int) -> int:
        """Return the port at which one node dials another one that listens on `port`."""
        return int(self._ask("open", dialler, dialled, port))

    def set(self, sender: str, receiver: str, **conditions: object) -> None:
        """Set conditions (see `proxy.Conditions`) for one direction; those that are not named get their
        initial values.
        """
        self._ask("set", sender, receiver, conditions)

    def _ask(self, name: str, *arguments: object) -> Any:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({name: arguments}) + "\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], self._answer_timeout_s)
        if not readable:
            raise TimeoutError("the proxy between the nodes does not answer")
        return json.loads(process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()
