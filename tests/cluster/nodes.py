"""A cluster of real processes, seen from outside: the faults that tests cause, and the questions that they
ask.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance_tests.patience import PATIENCE_S
from tests.cluster.links import Links, Unsupported

POLL_S = 0.05
COMMAND_MAX_S = PATIENCE_S


@dataclass(frozen=True)
class Member:
    """One replica of a queue, as it or its leader reports it."""

    node: str
    leads: bool
    online: bool
    #: Index of the last applied entry.
    applied: int
    #: Digest of the state at `applied`; None if the broker has none to report.
    digest: str | None


class Cluster(ABC):
    """Nodes by name. Every method that waits is bounded, and raises AssertionError when its time is over."""

    broker: str
    links: Links
    #: True if an answer on a channel says that everything sent there before it is durable.
    answers_vouch: bool
    #: True if clients of the nodes may be served by processes that are no members of the queues.
    has_guests = False

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._small: set[Path] = set()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def tainted(self) -> bool:
        """True if faults have left traces that do not go away by themselves, and that would disturb the next
        test.
        """
        return False

    # -- processes -------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Start all nodes, and wait until each serves and knows the others."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def launch(self, name: str) -> None:
        """Start a node's process, and do not wait for it."""

    @abstractmethod
    def ready(self, name: str) -> None:
        """Wait until a launched node serves clients."""

    @abstractmethod
    def kill(self, name: str) -> None: ...

    @abstractmethod
    def stop(self, name: str) -> None:
        """Send SIGTERM, and wait for the end."""

    @abstractmethod
    def freeze(self, name: str) -> None: ...

    @abstractmethod
    def thaw(self, name: str) -> None: ...

    @abstractmethod
    def port(self, name: str) -> int:
        """The port for clients of this node; after a restart it may be another one."""

    @abstractmethod
    def data(self, name: str) -> Path: ...

    @abstractmethod
    def log(self, name: str) -> str: ...

    @abstractmethod
    def preload(self, library: Path, environment: Callable[[str], dict[str, str]]) -> None:
        """From the next launch on, processes load this library first; the environment is given by node."""

    # -- queues ----------------------------------------------------------------------------------------------

    @abstractmethod
    def members(self, queue: str) -> list[Member]:
        """Return the replicas that can be asked; empty if none can."""

    @abstractmethod
    def depth(self, queue: str) -> tuple[int, int]:
        """Return the ready messages, and those that consumers hold."""

    def transfer(self, queue: str, name: str) -> None:
        """Make this node the queue's leader."""
        raise Unsupported(f"{self.broker} is not asked to move leaders here")

    def wipe(self, name: str) -> None:
        """Delete the data of a dead node."""
        shutil.rmtree(self.data(name))

    def plant(self, name: str, queue: str, count: int) -> None:
        """Have the next entries raise that this queue applies on one node."""
        raise Unsupported(f"nothing can be planted in {self.broker}")

    def failed(self, name: str) -> dict[str, str]:
        """Return the queues that have failed on a node and are stopped there, and what the node does about
        them.
        """
        raise Unsupported(f"{self.broker} does not tell")

    def retry_failed(self, name: str, queue: str) -> None:
        """Have the node try such a queue again."""
        raise Unsupported(f"{self.broker} does not do that")

    def set_clock(self, name: str, wrong_s: float) -> None:
        """Set a node's wall clock to be wrong by so much."""
        raise Unsupported(f"clocks of {self.broker} are not set here")

    def grow(self) -> str:
        """Start one more node and make it a member of the cluster and of all queues; return its name."""
        raise Unsupported(f"membership of {self.broker} is not changed here")

    def shrink(self, name: str) -> None:
        """Take a node out of all queues and out of the cluster, and stop it."""
        raise Unsupported(f"membership of {self.broker} is not changed here")

    def set_alarm(self, name: str, *, raised: bool) -> None:
        """Set or clear the memory alarm of a node, which blocks publishers."""
        raise Unsupported(f"alarms of {self.broker} are not raised here")

    def leave_queues(self, name: str) -> None:
        """Take a node out of all queues; it still serves clients."""
        raise Unsupported(f"membership of {self.broker} is not changed here")

    def join_queues(self, name: str) -> None:
        """Make the node a member of all queues again."""
        raise Unsupported(f"membership of {self.broker} is not changed here")

    def is_ready(self, name: str) -> bool | None:
        """Return the node's answer to a readiness probe; None if it does not answer."""
        return None

    def topology_leader(self) -> str | None:
        """Return the node through which all declarations go; None if there is none, or no node says so."""
        return None

    # -- what follows from these -----------------------------------------------------------------------------

    def restart(self, name: str) -> None:
        self.launch(name)
        self.ready(name)

    def leader(self, queue: str, within_s: float = PATIENCE_S) -> str:
        found: list[str] = []

        def one() -> bool:
            found[:] = [member.node for member in self.members(queue) if member.leads and member.online]
            return len(found) == 1

        wait_for(f"{queue} has one leader", one, within_s, lambda: str(self.members(queue)))
        return found[0]

    def confine(self, name: str, size_bytes: int) -> None:
        """Move a dead node's data onto a file system of this size."""
        if os.geteuid() != 0:
            raise Unsupported("only root may mount a small file system")
        place = self.data(name)
        aside = place.with_name(place.name + ".aside")
        place.rename(aside)
        place.mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place)]
        done = subprocess.run(mounting, capture_output=True, text=True, timeout=COMMAND_MAX_S)
        if done.returncode != 0:
            place.rmdir()
            aside.rename(place)
            raise Unsupported(f"a file system can't be mounted here: {done.stderr.strip()}")
        self._small.add(place)
        _move(aside, place)

    def release(self, name: str) -> None:
        """Undo `confine`."""
        place = self.data(name)
        aside = place.with_name(place.name + ".aside")
        shutil.copytree(place, aside, copy_function=_copy_sparse)
        self._unmount(place)
        place.rmdir()
        aside.rename(place)

    def _unmount(self, place: Path) -> None:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=COMMAND_MAX_S)
        self._small.remove(place)

    def unmount(self) -> None:
        """Unmount whatever a failed test left mounted."""
        for place in sorted(self._small):
            self._unmount(place)


def _copy_sparse(source: str, target: str) -> str:
    """Copy sparsely: a store's file is as long as its map, and mostly holes."""
    subprocess.run(["cp", "-p", "--sparse=always", source, target], check=True, timeout=COMMAND_MAX_S)
    return target


def _move(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True, copy_function=_copy_sparse)
    shutil.rmtree(source)


def wait_for(
    what: str, holds: Callable[[], bool], within_s: float = PATIENCE_S, state: Callable[[], str] = lambda: ""
) -> float:
    """Poll a condition of other processes, for which there is no event; return how long it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"not within {within_s} s: {what}; {state()}")
        time.sleep(POLL_S)
    return time.monotonic() - began
