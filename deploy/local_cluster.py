"""Three nodes on this machine, from one command: `make cluster`, or `python -m deploy.local_cluster --help`.

Each node is a separate process with its own data directory, its own status line, and consecutive ports: AMQP
on 5672, 5673, 5674, management on 15672, …, links between the nodes on 25672, …. Enter restarts stopped
nodes; Ctrl-C stops all nodes one by one, so that the last ones see the others leave in an orderly way.
Confirmed messages are there again at the next start.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

#: Time that a node has to move its leaders away and to stop, s.
STOP_TIMEOUT_S = 20.0
#: Time between two checks of the nodes, s.
LOOK_INTERVAL_S = 1.0
#: Bytes of a log that are read for its last line.
LAST_WORDS_BYTES = 4096


@dataclass
class Member:
    """One node of the cluster, and its process."""

    name: str
    directory: Path
    amqp: str
    http: str
    link: str
    arguments: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    ready: str = ""
    shown: str = ""

    def start(self) -> None:
        log = self.log.open("a")
        command = [sys.executable, "-P", "-m", "amqp_server.main", *self.arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("mqd ready"):
                self.ready = line.strip()

    def state(self, user: str) -> str:
        """Return one line about the state of the node."""
        process = self.process
        if process is None or process.poll() is not None:
            code = None if process is None else process.returncode
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            return f"down ({how}): {self._last_words()}; log in {self.log}"
        if not self.ready:
            return f"starting, pid {process.pid}"
        seen = _cluster(self.http, user)
        if seen is None:
            return f"up, pid {process.pid}, amqp={self.amqp} http={self.http}"
        others = [node["name"] for node in seen["nodes"] if node["running"] and node["name"] != self.name]
        majority = "majority" if seen["majority"] else "NO MAJORITY"
        return (
            f"up, pid {process.pid}, amqp={self.amqp} http={self.http}, sees {' '.join(others) or 'nobody'}, "
            f"{majority}, leads {seen['groups'].get(self.name, 0)} of {seen['groups_total']} quorum queues"
        )

    @property
    def log(self) -> Path:
        return self.directory / "mqd.log"

    def _last_words(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    @property
    def down(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def stop(self) -> None:
        process = self.process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cluster(http: str, user: str) -> dict[str, Any] | None:
    request = urllib.request.Request(f"http://{http}/api/cluster")
    request.add_header("Authorization", "Basic " + user)
    try:
        with urllib.request.urlopen(request, timeout=1.0) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, ValueError, urllib.error.URLError):
        return None


def make_members(
    directory: Path, count: int, amqp: int, http: int, link: int, user: str, password: str
) -> list[Member]:
    """Prepare the nodes and their shared secret."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = directory / "cluster.secret"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(32))
    names = [f"n{number + 1}" for number in range(count)]
    peers = ",".join(f"{name}=127.0.0.1:{link + number}" for number, name in enumerate(names))
    members = []
    for number, name in enumerate(names):
        own = directory / name
        own.mkdir(mode=0o700, exist_ok=True)
        member = Member(
            name,
            own,
            f"127.0.0.1:{amqp + number}",
            f"127.0.0.1:{http + number}",
            f"127.0.0.1:{link + number}",
        )
        member.arguments = [
            *("--data-dir", str(own / "data"), "--amqp", member.amqp, "--http", member.http),
            *("--node", name, "--peers", peers, "--cluster-secret-file", str(secret)),
            *("--default-user", user, "--default-password", password),
        ]
        members.append(member)
    return members


def _listen_for_enter() -> threading.Event:
    """Set the event for each line of standard input."""
    # In the background, reading the terminal fails instead of stopping this process.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    asked = threading.Event()

    def listen() -> None:
        with suppress(OSError, ValueError):
            for _ in sys.stdin:
                asked.set()

    threading.Thread(target=listen, daemon=True).start()
    return asked


def _announcement(members: list[Member], elapsed_s: float) -> str:
    return (
        f"all ready ({elapsed_s:.1f} s): connect to any of {' '.join(member.amqp for member in members)}; "
        f"look with mqctl --url http://{members[0].http} cluster status; Ctrl-C stops all"
    )


@click.command(context_settings={"show_default": True})
@click.option(
    "--data-dir", type=click.Path(path_type=Path), default=Path("mqd-cluster"), help="Where all is kept."
)
@click.option("--nodes", type=click.IntRange(1, 9), default=3, help="How many nodes.")
@click.option("--amqp", type=int, default=5672, help="AMQP port of the first node.")
@click.option("--http", type=int, default=15672, help="Management port of the first node.")
@click.option("--link", type=int, default=25672, help="Port of the first node for the others.")
@click.option("--user", default="guest", help="User made at the first start.")
@click.option("--password", default="guest", help="Its password.")
@click.option("--restart/--no-restart", default=False, help="Start nodes that were killed again.")
def main(
    data_dir: Path, nodes: int, amqp: int, http: int, link: int, user: str, password: str, restart: bool
) -> None:
    """Run a cluster on this machine until Ctrl-C."""
    import base64

    members = make_members(data_dir, nodes, amqp, http, link, user, password)
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    stop = threading.Event()
    # The nodes survive the end of the terminal; this program stops them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    asked = _listen_for_enter()
    began = time.monotonic()
    for member in members:
        member.start()
    announced = False
    while not stop.wait(LOOK_INTERVAL_S if all(member.ready for member in members) else 0.1):
        again = restart or asked.is_set()
        asked.clear()
        for member in members:
            state = member.state(login)
            if state != member.shown:
                member.shown = state
                click.echo(f"{time.strftime('%H:%M:%S')} {member.name} {state}")
                if member.down and not restart:
                    click.echo(f"Enter starts {member.name} again")
            if member.down and again:
                member.ready = ""
                member.start()
        if not announced and all(member.ready for member in members):
            announced = True
            click.echo(_announcement(members, time.monotonic() - began))
    for member in members:
        click.echo(f"{time.strftime('%H:%M:%S')} {member.name} stopping")
        member.stop()
    click.echo(f"all stopped; the data stays in {os.path.relpath(data_dir)}")


if __name__ == "__main__":
    main()
