"""Schedules password checks: the only place where a running node computes password hashes.

A check takes a core for about 20 ms and 12 MiB of memory, and strangers can cause it. So only a few run at a
time, at most one for each address: waiting logins take turns by address, so no login waits behind all guesses
of another address. An address whose logins fail waits longer and longer before its next check. A password
that was checked recently needs no check and no wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from amqp_server.broker.access.users import Users
from quorum_queue.links.sources import source_of

if TYPE_CHECKING:
    from amqp_server.config import Config

T = TypeVar("T")

#: First pause before a check after failures, s; it doubles with each further failure.
BACK_OFF_FIRST_S = 0.1


class Outcome(Enum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    #: Not checked, because too many logins of this address wait, or this one has waited too long.
    BUSY = "busy"


class OtherFailures(Protocol):
    """Failed logins at the node's other processes."""

    def note_failures(self, address: str, failures: int) -> None:
        """So many logins of this address have failed here, the last one now."""

    def failures(self, address: str, memory_s: float) -> int:
        """Return how many failed at the others, without those whose last one was longer ago than this."""


class Source:
    """One address: its failed logins, and the logins that wait for a check."""

    __slots__ = ("failed_at", "failures", "next", "waiting")

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = 0.0
        #: Held by the login that is checked next, first come, first served.
        self.next = trio.Lock()
        self.waiting = 0


def _outcome(verified: bool | None) -> Outcome:
    if verified is None:
        return Outcome.BUSY
    return Outcome.ACCEPTED if verified else Outcome.REFUSED


class PasswordChecks:
    def __init__(
        self,
        users: Users,
        config: Config,
        replace_hash: Callable[[str, str, str], None] | None = None,
        others: OtherFailures | None = None,
    ) -> None:
        """`replace_hash` is called with the name, the old and the new hash of a user who has logged in with a
        hash from RabbitMQ. `others` are the other processes of the node, if it has several.
        """
        self._others = others
        self._users = users
        self._replace_hash = replace_hash
        self._config = config
        self._limiter = trio.CapacityLimiter(config.password_checks_at_once)
        #: Addresses with failed or waiting logins, ordered by their last failure.
        self._sources: OrderedDict[str, Source] = OrderedDict()

    async def check(
        self, peer: str, name: str, password: str, waiting_max: int | None = None, *, counts: bool = True
    ) -> Outcome:
        """Check a user's password. Takes no longer than the time limit of a login.

        `waiting_max` is a lower limit than that of the configuration. `counts`: a refusal counts as a failed
        login. Otherwise another backend may still accept it, and the caller calls `failed` if none did.
        """
        recall = partial(self._users.recall, name, password)
        verified = recall()
        if verified is None:
            verified = await self._check_in_turn(
                source_of(peer), partial(self._verify, name, password), recall, waiting_max, counts=counts
            )
        return _outcome(verified)

    async def _verify(self, name: str, password: str) -> bool:
        verified = await self.run(self._users.verify, name, password)
        better = self._users.better_hash(name)
        if better is not None and self._replace_hash is not None:
            self._replace_hash(name, *better)
        return verified

    async def check_otherwise(
        self, peer: str, verify: Callable[[], Awaitable[bool]], waiting_max: int | None = None
    ) -> Outcome:
        """Make another kind of check, with the same limits as for passwords."""
        return _outcome(await self._check_in_turn(source_of(peer), verify, waiting_max=waiting_max))

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Compute a hash, within the limit of simultaneous computations."""
        return await trio.to_thread.run_sync(function, *args, limiter=self._limiter)

    async def _check_in_turn(
        self,
        address: str,
        verify: Callable[[], Awaitable[bool]],
        recall: Callable[[], bool | None] = lambda: None,
        waiting_max: int | None = None,
        *,
        counts: bool = True,
    ) -> bool | None:
        source = self._sources.setdefault(address, Source())
        limit = self._config.password_checks_waiting_max
        if source.waiting >= (limit if waiting_max is None else min(limit, waiting_max)):
            return None
        verified: bool | None = None
        source.waiting += 1
        try:
            with trio.move_on_after(self._config.handshake_timeout_s):
                async with source.next:
                    await trio.sleep(self._back_off_s(address, source))
                    # Another login with the same password may have been checked meanwhile.
                    verified = recall()
                    if verified is None:
                        verified = await verify()
                        if not verified and counts:
                            self._failed(address, source)
        finally:
            source.waiting -= 1
            if not source.waiting and not source.failures:
                self._sources.pop(address, None)
        return verified

    def _back_off_s(self, address: str, source: Source) -> float:
        config = self._config
        if trio.current_time() - source.failed_at > config.login_failure_memory_s:
            source.failures = 0
        failures = source.failures
        if self._others is not None:
            failures += self._others.failures(address, config.login_failure_memory_s)
        beyond = failures - config.login_failures_free
        if beyond < 0:
            return 0.0
        return min(config.login_back_off_max_s, BACK_OFF_FIRST_S * float(1 << min(beyond, 32)))

    def failed(self, peer: str) -> None:
        """No backend has accepted a login of this address."""
        address = source_of(peer)
        self._failed(address, self._sources.setdefault(address, Source()))

    def _failed(self, address: str, source: Source) -> None:
        source.failures += 1
        source.failed_at = trio.current_time()
        if self._others is not None:
            self._others.note_failures(address, source.failures)
        self._sources[address] = source
        self._sources.move_to_end(address)
        while len(self._sources) > self._config.login_sources_max:
            self._sources.popitem(last=False)
