"""Attacks on the port for links to other nodes, from strangers who do not know the secret."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance_tests.ports import free_ports
from tests.reliability.node import Node, wait_until

from ..scene import ELSEWHERE, Scene, Target
from .web import GUEST

HOST = "127.0.0.1"
NAMES = ("n1", "n2", "n3")
#: How often the other node restarts.
RESTARTS = 3
#: Time until a node that starts has to be linked, s. Undisturbed it takes 2, and with such a crowd 5 to 8; if
#: a full crowd let nobody in, it would take 18.
LINKED_S = 14.0
#: Interval at which connections that were dropped are made again, s.
AGAIN_S = 0.01


@dataclass
class Neighbours:
    """The other nodes of the cluster, and the ports for links of all."""

    nodes: dict[str, Node]
    ports: dict[str, int]


@contextlib.contextmanager
def _with_neighbours(directory: Path) -> Iterator[tuple[Neighbours, Sequence[str]]]:
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    secret = directory / "link-secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    peers = ",".join(f"{name}={HOST}:{port}" for name, port in ports.items())

    def options(name: str) -> list[str]:
        return [
            *("--node", name, "--peers", peers),
            *("--cluster-secret-file", str(secret), "--disk-free-min-bytes", "1MiB"),
        ]

    nodes: dict[str, Node] = {}
    for name in NAMES[1:]:
        place = directory / name
        place.mkdir()
        nodes[name] = Node(place, *options(name))
    try:
        # They begin when the attacked node does.
        for node in nodes.values():
            node.launch()
        yield Neighbours(nodes, ports), options(NAMES[0])
    finally:
        for node in nodes.values():
            node.kill()


def _linked(target: Target, name: str) -> bool:
    url = f"http://{HOST}:{target.node.http}/api/cluster"
    request = urllib.request.Request(url, headers={"Authorization": GUEST})
    with urllib.request.urlopen(request, timeout=20) as answer:
        told = json.load(answer)
    return any(node["name"] == name and node["running"] for node in told["nodes"])


def _hold(port: int, source: str, count: int, ended: threading.Event) -> None:
    """Hold connections that say nothing, and make those again that are dropped."""
    with contextlib.ExitStack() as stack:
        socks: list[socket.socket | None] = [None] * count
        while not ended.wait(AGAIN_S):
            for place, sock in enumerate(socks):
                if sock is not None:
                    with contextlib.suppress(BlockingIOError):
                        try:
                            dropped = not sock.recv(1)
                        except ConnectionError:
                            dropped = True
                        if dropped:
                            sock.close()
                            socks[place] = None
                if socks[place] is None:
                    with contextlib.suppress(OSError):
                        fresh = stack.enter_context(socket.create_connection((HOST, port), 5, (source, 0)))
                        fresh.setblocking(False)
                        socks[place] = fresh


def silent_links(target: Target) -> None:
    """100 connections that say nothing to the port for links of each of two nodes, half of them from the
    address of the nodes, while one of these restarts.
    """
    neighbours: Neighbours = target.beside
    ended = threading.Event()
    # Each of two nodes dials the other one: one of both has to be let in.
    crowds = [
        threading.Thread(target=_hold, args=(neighbours.ports[name], source, target.many(50), ended))
        for name in NAMES[:2]
        for source in (ELSEWHERE, HOST)
    ]
    node = neighbours.nodes[NAMES[1]]
    try:
        for crowd in crowds:
            crowd.start()
        for _ in range(RESTARTS):
            node.stop()
            wait_until("the node is known to be down", lambda: not _linked(target, NAMES[1]))
            node.launch()
            wait_until("the node is linked again", lambda: _linked(target, NAMES[1]), LINKED_S)
            node.ready()
    finally:
        ended.set()
        for crowd in crowds:
            crowd.join()


SCENES = (
    Scene(
        "silent-links",
        "100 silent connections to the port for links while another node restarts",
        silent_links,
        beside=_with_neighbours,
    ),
)
