"""The links between the nodes of a cluster, and their faults."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from typing import Any, Protocol

CLONE_NEWNET = 0x4000_0000


class Links(Protocol):
    """Conditions of links. A condition holds for one direction until it is set anew."""

    def set(
        self,
        sender: str,
        receiver: str,
        *,
        hold: bool = False,
        cut: bool = False,
        delay_ms: int = 0,
        bytes_per_s: int = 0,
    ) -> None: ...

    def close(self) -> None: ...


class Unsupported(Exception):
    """This fault is not possible here, or not for this broker; the text says why."""


class FilteredLinks:
    """Packet filters, for nodes with an address each. Only in a network namespace that no other program
    uses.
    """

    def __init__(self, addresses: dict[str, str]) -> None:
        self._addresses = addresses
        self._rules: dict[tuple[str, str], list[str]] = {}
        self.used = False

    def set(
        self,
        sender: str,
        receiver: str,
        *,
        hold: bool = False,
        cut: bool = False,
        delay_ms: int = 0,
        bytes_per_s: int = 0,
    ) -> None:
        if delay_ms or bytes_per_s:
            raise Unsupported("a packet filter neither delays nor throttles")
        if old := self._rules.pop((sender, receiver), None):
            self._filter("-D", old)
        if not (hold or cut):
            return
        if not private_network():
            raise Unsupported("packets are filtered in a network namespace of our own only")
        verdict = ["DROP"] if hold else ["REJECT", "--reject-with", "tcp-reset"]
        addresses = ["-s", self._addresses[sender], "-d", self._addresses[receiver]]
        rule = [*addresses, "-p", "tcp", "-j", *verdict]
        self._filter("-A", rule)
        self.used = True
        self._rules[sender, receiver] = rule

    def _filter(self, what: str, rule: Sequence[str]) -> None:
        subprocess.run(["iptables", what, "INPUT", *rule], check=True, timeout=20)

    def close(self) -> None:
        for rule in self._rules.values():
            self._filter("-D", rule)
        self._rules.clear()


_private = False


def private_network() -> bool:
    return _private


def enter_private_network() -> None:
    """From here on this process and its children have only a loopback interface of their own."""
    global _private
    if os.geteuid() != 0:
        raise Unsupported("only root may make a network namespace")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise Unsupported(f"a network namespace can't be made: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
    _private = True


def isolate(links: Links, name: str, others: Sequence[str], **conditions: Any) -> None:
    """Set the same conditions in both directions between one node and all others."""
    for other in others:
        if other != name:
            links.set(name, other, **conditions)
            links.set(other, name, **conditions)


def sever(links: Links, one: str, two: str, **conditions: Any) -> None:
    """Set the same conditions in both directions between two nodes."""
    links.set(one, two, **conditions)
    links.set(two, one, **conditions)


def mute(links: Links, name: str, others: Sequence[str], **conditions: Any) -> None:
    """Set conditions only for what the node sends."""
    for other in others:
        if other != name:
            links.set(name, other, **conditions)


def deafen(links: Links, name: str, others: Sequence[str], **conditions: Any) -> None:
    """Set conditions only for what the node receives."""
    for other in others:
        if other != name:
            links.set(other, name, **conditions)
