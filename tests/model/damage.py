"""Damage to the files of a node that is down."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.mqd import MqdCluster

#: Bodies of messages end in many of these, see spec.messages.Message.
FILLING = b"x" * 8
#: What is damaged, and how. Not pages of the store: that may kill the process by a signal, as the docs say.
KINDS = (
    "message",
    "store cut off",
    "log",
    "log cut off",
    "segment",
    "segment cut off",
    "aside",
    "aside cut off",
    "aside gone",
)
#: What a single node goes on with: of what is lost the log tells.
ALONE = ("segment", "segment cut off", "aside", "aside cut off", "aside gone")
#: Files that a node can do without.
ASIDE = ("*.index", "sealed", "names", "first", "compacted", "sound", "marks", "spill", "ballast")


_LOST = re.compile(r"stream '([^']+)' in vhost '([^']+)' lost messages (\d+) to (\d+):")


def lost(log: str, vhost: str, stream: str) -> set[int]:
    """The offsets that the log names as lost."""
    return {
        offset
        for name, where, low, high in _LOST.findall(log)
        if (name, where) == (stream, vhost)
        for offset in range(int(low), int(high) + 1)
    }


def files_of(data: Path, what: str) -> list[Path]:
    patterns = {
        "message": ("data.mdb",),
        "store": ("data.mdb",),
        "log": ("log",),
        "segment": ("*.segment",),
        "aside": ASIDE,
    }[what.split()[0]]
    found = {path for pattern in patterns for path in data.rglob(pattern)}
    return sorted(path for path in found if path.is_file() and path.stat().st_size)


def strike(data: Path, what: str, seed: int) -> Path | None:
    """Damage one file. Return which one; None if there is none, or if no message is in it."""
    chance = random.Random(seed)
    files = files_of(data, what)
    if not files:
        return None
    path = chance.choice(files)
    if what.endswith("gone"):
        path.unlink()
    elif what.endswith("cut off"):
        with path.open("r+b") as file:
            file.truncate(chance.randrange(path.stat().st_size))
    else:
        content = path.read_bytes()
        places = list(_messages(content)) if what == "message" else _written(content)
        if not places:
            return None
        at = chance.choice(places)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([content[at] ^ (1 << chance.randrange(8))]))
    return path


def _messages(content: bytes) -> Iterator[int]:
    at = content.find(FILLING)
    while at >= 0:
        yield at + len(FILLING) // 2
        at = content.find(FILLING, at + len(FILLING))


def _written(content: bytes) -> range:
    """The file without the zeros at its end, which may be room that nothing was written to."""
    return range(len(content.rstrip(b"\0")))


def start(cluster: MqdCluster, node: str) -> None:
    """Start a node with damage. The remedy if it can't start is an empty directory: the others fill it."""
    try:
        cluster.restart(node)
    except AssertionError as error:
        if "did not start" not in str(error):
            raise
        said = [line for line in cluster.log(node).splitlines() if "damage" in line or "mqd:" in line]
        assert said, f"{node} does not start, and does not say why: {error}"
        shutil.rmtree(cluster.data(node))
        cluster.restart(node)
