"""Watches for what an operator has to know, though it blocks no publisher: a certificate that ends soon, a
clock that was set, queues that have failed, a cluster without a majority.

Each is an alarm: logged when it begins and when it ends, listed by `/api/alarms` and `mqctl status`, and
shown on each page in the browser.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import trio

from amqp_server.broker.alarms import Alarms
from amqp_server.config import Config

#: Names of the alarms.
CERTIFICATE, CLOCK, FAILED_QUEUES, NO_MAJORITY = "certificate", "clock", "failed_queues", "no_majority"
#: Set by the streams themselves.
STREAM_REMOTE, STREAM_TABLE = "stream_remote", "stream_table"
CONDITIONS = (CERTIFICATE, CLOCK, FAILED_QUEUES, NO_MAJORITY, STREAM_REMOTE, STREAM_TABLE)
#: Interval of looks, s.
INTERVAL_S: Final = 2.0
#: A missing majority is an alarm when this many looks in a row have found none: elections are no alarm.
LOOKS: Final = 2
DAY_S: Final = 86_400


class Clocks:
    """Compares the wall clock with the monotonic one. A difference means that somebody has set the clock."""

    def __init__(self, wall_s: float, monotonic_s: float, stands_s: float) -> None:
        self._stands_s = stands_s
        self._began_s = wall_s - monotonic_s
        self._wrong_since_s: float | None = None

    def step_s(self, wall_s: float, monotonic_s: float, max_s: float) -> float:
        """Return by how much the wall clock was set forward, or back (below zero); 0 if it is right, or if
        the new time has stood for so long that it counts as right.
        """
        step = wall_s - monotonic_s - self._began_s
        if abs(step) <= max_s:
            self._wrong_since_s = None
            return 0.0
        if self._wrong_since_s is None:
            self._wrong_since_s = monotonic_s
        if monotonic_s - self._wrong_since_s >= self._stands_s:
            self._began_s += step
            self._wrong_since_s = None
            return 0.0
        return step


class ConditionWatch:
    """Looks at intervals, and sets or clears the alarms."""

    def __init__(
        self,
        config: Config,
        alarms: Alarms,
        *,
        failed_queues: Callable[[], int],
        has_majority: Callable[[], bool],
    ) -> None:
        self._config = config
        self._alarms = alarms
        self._failed_queues = failed_queues
        self._has_majority = has_majority
        self._clocks = Clocks(time.time(), _since_boot_s(), config.clock_alarm_s)
        self._without = 0
        self._certificates_at = 0.0

    async def run(self) -> None:
        while True:
            now = trio.current_time()
            if now >= self._certificates_at:
                self._certificates_at = now + self._config.tls_check_s
                ends = await trio.to_thread.run_sync(certificate_ends, self._config, bool(self._config.peers))
                self.look_at_certificates(ends, time.time())
            self.look(time.time(), _since_boot_s())
            await trio.sleep(INTERVAL_S)

    def look_at_certificates(self, ends: dict[str, float | None], now_s: float) -> None:
        """`ends` has the end of each certificate by file, s since 1970; None if it cannot be read."""
        days = self._config.certificate_alarm_days
        said = [
            _certificate_text(file, end, now_s)
            for file, end in ends.items()
            if days and (end is None or end - now_s < days * DAY_S)
        ]
        self._alarms.set_condition(CERTIFICATE, "; ".join(said), of_machine=True)

    def look(self, wall_s: float, monotonic_s: float) -> None:
        step = self._clocks.step_s(wall_s, monotonic_s, self._config.clock_step_max_s)
        told = (
            f"the wall clock was set {'forward' if step > 0 else 'back'} by {abs(step):.0f} s: timestamps, the age of "
            "streams and certificates follow it. Let NTP set the clock"
        )
        self._alarms.set_condition(CLOCK, told if step else "", of_machine=True)
        failed = self._failed_queues()
        told = f"{failed} queues are stopped on this node because they failed: see mqctl list_failed"
        self._alarms.set_condition(FAILED_QUEUES, told if failed else "")
        self._without = 0 if self._has_majority() else self._without + 1
        told = (
            "this node does not reach a majority of the cluster's nodes: replicated queues take no messages here, and "
            "nothing can be declared. Start the missing nodes (mqctl cluster status)"
        )
        self._alarms.set_condition(NO_MAJORITY, told if self._without >= LOOKS else "")


def _certificate_text(file: str, end: float | None, now_s: float) -> str:
    if end is None:
        return f"{file} cannot be read"
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end))
    if end < now_s:
        return f"{file} has expired on {when}: no client can connect by TLS. Replace the file; no restart is needed"
    return f"{file} expires on {when}. Replace the file; no restart is needed"


def _since_boot_s() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def certificate_files(config: Config, in_cluster: bool) -> list[str]:
    """Return the files of the certificates that the node presents to clients and to other nodes."""
    files = [config.tls_cert_file] if config.amqps and config.tls_cert_file else []
    if in_cluster and config.cluster_tls_cert_file:
        files.append(config.cluster_tls_cert_file)
    return files


def certificate_ends(config: Config, in_cluster: bool) -> dict[str, float | None]:
    return {file: certificate_end(file) for file in certificate_files(config, in_cluster)}


def certificate_end(file: str) -> float | None:
    """Return when the certificate in this file ends, s since 1970; None if there is none, so that the node
    would not start.
    """
    try:
        # The only way to use OpenSSL's parser without a handshake.
        decoded: dict[str, Any] = ssl._ssl._test_decode_cert(file)  # type: ignore[attr-defined]
    except (OSError, ValueError):
        return None
    return ssl.cert_time_to_seconds(decoded["notAfter"])
