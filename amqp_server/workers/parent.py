"""The parent of a node's workers: it starts them, restarts those that end, and ends with them.

It does no work of a broker, has one thread and opens no store, so that a worker can be forked from it at any
time: the modules that it has imported are in memory once for all.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from amqp_server import logs
from amqp_server.cluster.membership.machines import worker_name
from amqp_server.config import Config
from amqp_server.connection.sockets.listener import ListenError, bind, bind_all, listen_for_nodes
from amqp_server.startup.exit_codes import AGAIN, INTERNAL_ERROR, OUT
from amqp_server.workers.board import STARTED, Board
from amqp_server.workers.open_connections import OpenConnections
from amqp_server.workers.worker import SECRET_FILE, Worker, config_of, directory_of, metrics_address
from persistence.environment import WORKERS, is_in_use
from quorum_queue.links import local_sockets

logger = logging.getLogger("mqd.workers")

#: A worker that ends sooner than this after its start has failed, s.
STEADY_S: Final = 10.0
#: Pause before the second restart in a row, doubled with each further one, s.
PAUSE_S, PAUSE_MAX_S = 0.25, 5.0
#: Time for workers of an earlier parent to end, s.
EARLIER_S: Final = 2.0
#: See prctl(2).
_PR_SET_PDEATHSIG: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

Serve = Callable[[Worker], int]


@dataclass
class _Child:
    """A worker as its parent sees it."""

    number: int
    pid: int = 0
    began_s: float = 0.0
    #: The end of the pipe from which the ready line comes; -1 if it has come, or none is awaited.
    ready: int = -1
    #: What it said when it was ready first.
    said: str = ""
    #: Restarts in a row that did not last.
    failures: int = 0
    #: When it is to be started again; 0 if it runs, or is left down.
    due_s: float = 0.0


class Parent:
    def __init__(self, config: Config, count: int, serve: Serve, announce: Callable[[str], None]) -> None:
        """`serve` runs a worker and returns its exit code; `announce` gets what the first worker's ready line
        says.
        """
        self._config = config
        self._serve = serve
        self._announce = announce
        self._children = [_Child(number) for number in range(count)]
        self._board = Board(count)
        #: By number; only events tell of them.
        self._open_connections = [
            OpenConnections() for _ in range(count if config.event_exchange_vhost else 0)
        ]
        self._sockets: dict[str, socket.socket] = {}
        #: Of each worker one, which it alone listens on.
        self._metrics: list[socket.socket] = []
        self._links: list[socket.socket] = []
        #: Where they listen.
        self._addresses: list[str] = []
        #: What all of them listen on for other nodes, if there are any.
        self._links_of_nodes: list[socket.socket] = []
        #: By number, the two ends of the way of connections to each worker. Those on their way to a worker
        #: that ends wait for its next process.
        self._ways = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        self._selector = selectors.DefaultSelector()
        self._announced = self._stopping = self._reloaded = False
        self._code = 0

    def run(self) -> int:
        """Run the node until it is told to stop; return its exit code."""
        config = self._config
        logs.begin_directly(config.log_level, config.log_format)
        self._await_earlier()
        try:
            self._sockets = bind_all(config)
            if config.metrics:
                self._metrics = [self._sockets.pop("metrics")]
                self._metrics += [
                    bind("metrics", metrics_address(config, child.number)) for child in self._children[1:]
                ]
            if config.peers:
                self._links_of_nodes = [listen_for_nodes(config)]
        except ListenError as error:
            print(f"mqd: {error}", file=sys.stderr)
            return 1
        try:
            self._make_secret()
            self._addresses = self._listen()
        except OSError as error:
            print(f"mqd: the workers cannot be prepared in {config.data_dir}: {error}", file=sys.stderr)
            return 1
        woken, self._wakes = socket.socketpair()
        for end in (woken, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for each in _SIGNALS:
            signal.signal(each, _noted)
        self._selector.register(woken, selectors.EVENT_READ, woken)
        # What exists now stays, and is shared with the workers as long as nobody writes to it.
        gc.freeze()
        for child in self._children:
            self._begin(child)
        while any(child.pid or child.due_s for child in self._children):
            self._wait()
        # All of them were left down.
        return self._code if self._stopping else INTERNAL_ERROR

    def _await_earlier(self) -> None:
        """If an earlier parent was killed, the kernel may still be ending its workers."""
        directories = [directory_of(self._config, child.number) for child in self._children]
        until = time.monotonic() + EARLIER_S
        while any(map(is_in_use, directories)) and time.monotonic() < until:
            time.sleep(0.02)

    def _make_secret(self) -> None:
        directory = Path(self._config.data_dir) / WORKERS
        # A mode holds for the last of the directories that are made.
        directory.parent.mkdir(0o700, parents=True, exist_ok=True)
        directory.mkdir(0o700, exist_ok=True)
        path = directory / SECRET_FILE
        if not path.exists():
            fresh = path.with_suffix(".new")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(os.urandom(32).hex())
            fresh.rename(path)

    def _listen(self) -> list[str]:
        """Listen for links of all workers, also while one of them is down; return the addresses."""
        name = f"{local_sockets.MARK}mqd-{os.urandom(8).hex()}"
        addresses = [f"{name}-{child.number}" for child in self._children]
        self._links = [local_sockets.listen(each, self._config.listen_backlog) for each in addresses]
        return [f"{each}:0" for each in addresses]

    # -- workers ---------------------------------------------------------------------------------------------

    def _begin(self, child: _Child) -> None:
        """Start a worker; if the machine has no room for it now, try again later."""
        try:
            self._fork(child)
        except OSError as error:
            logger.error("worker %s cannot be started: %s; it waits", self._name(child), error)
            self._close_ready(child)
            child.pid, child.due_s = 0, time.monotonic() + PAUSE_MAX_S

    def _fork(self, child: _Child) -> None:
        child.ready, writes = os.pipe()
        child.began_s, child.due_s = time.monotonic(), 0.0
        self._selector.register(child.ready, selectors.EVENT_READ, child)
        # A signal to the worker must not be noted as one to the parent, whose handlers it has at first.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        parent = os.getpid()
        try:
            child.pid = os.fork()
            if not child.pid:
                self._be(child, writes, parent)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(writes)

    def _be(self, child: _Child, writes: int, parent: int) -> None:
        """Be a worker, in its process, until it ends."""
        code = INTERNAL_ERROR
        try:
            # A node without its parent would be a node that nobody can stop.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                self._forget_parent(child)
                code = self._serve(self._worker(child.number, writes))
        except BaseException:  # noqa: BLE001 - the process ends here, and nobody else tells why
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _forget_parent(self, child: _Child) -> None:
        """Close and reset what only the parent needs."""
        signal.set_wakeup_fd(-1)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for key in list(self._selector.get_map().values()):
            end = key.fileobj
            os.close(end if isinstance(end, int) else end.fileno())
        self._selector.close()
        self._wakes.close()
        for number, links in enumerate(self._links):
            if number != child.number:
                links.close()
                self._ways[number][0].close()
        if self._config.pin_workers:
            allowed = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {allowed[child.number % len(allowed)]})

    def _worker(self, number: int, writes: int) -> Worker:
        config = config_of(self._config, number, self._addresses)

        def ready(text: str) -> None:
            os.write(writes, text.encode())
            os.close(writes)

        sockets = {option: sock for option, sock in self._sockets.items() if getattr(config, option)}
        if self._metrics:
            sockets["metrics"] = self._metrics[number]
        for option in self._sockets.keys() - sockets.keys():
            self._sockets[option].close()
        return Worker(
            number=number,
            node_config=self._config,
            config=config,
            sockets=sockets,
            links=[self._links[number], *self._links_of_nodes],
            inbox=self._ways[number][0],
            outboxes=[writes for _, writes in self._ways],
            board=self._board,
            open_connections=self._open_connections[number] if self._open_connections else None,
            ready=ready,
            reloaded=self._reloaded,
        )

    # -- the loop --------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        now = time.monotonic()
        dues = [child.due_s for child in self._children if child.due_s]
        for key, _ in self._selector.select(max(0.0, min(dues) - now) if dues else None):
            if isinstance(key.data, _Child):
                # The pipe may be that of a process whose end was noted just before.
                if key.fd == key.data.ready:
                    self._is_ready(key.data)
            else:
                for number in key.data.recv(256):
                    self._signalled(number)
        now = time.monotonic()
        for child in self._children:
            if child.due_s and child.due_s <= now:
                self._begin(child)

    def _is_ready(self, child: _Child) -> None:
        text = os.read(child.ready, 4096).decode()
        self._close_ready(child)
        if not text:
            # It has ended before: SIGCHLD tells the rest.
            return
        child.said = text
        if not self._announced and all(each.said for each in self._children):
            self._announced = True
            self._board.set(STARTED, 1)
            self._announce(f"{self._children[0].said} workers={len(self._children)}")
        elif self._announced:
            logger.info("worker %s serves again", self._name(child))

    def _close_ready(self, child: _Child) -> None:
        if child.ready >= 0:
            self._selector.unregister(child.ready)
            os.close(child.ready)
            child.ready = -1

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
            return
        if number == signal.SIGHUP:
            self._reloaded = True
        else:
            self._stopping = True
            for child in self._children:
                child.due_s = 0.0
            # Nobody accepts what would wait in them.
            for sock in self._sockets.values():
                sock.close()
        for child in self._children:
            if child.pid:
                os.kill(child.pid, signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM)

    def _reap(self) -> None:
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.pid = 0
                if child.ready >= 0:
                    self._is_ready(child)
                self._board.clear(child.number)
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        failed = 1 if code == OUT else code
        if self._stopping:
            self._code = self._code or max(failed, 0)
        elif code == AGAIN:
            self._begin(child)
        elif not self._announced:
            # The node has not served yet, and a start that fails says so at once.
            self._code = failed if failed > 0 else INTERNAL_ERROR
            self._signalled(signal.SIGTERM)
        elif code == OUT:
            self._left(child)
        else:
            self._restart(child, code)

    def _left(self, child: _Child) -> None:
        """The worker is out of its cluster. A node goes with its first worker, the last one to leave."""
        logger.warning("worker %s is out of the cluster", self._name(child))
        if not child.number:
            self._code = 1
            self._signalled(signal.SIGTERM)

    def _restart(self, child: _Child, code: int) -> None:
        name = self._name(child)
        why = f"by {_signal_name(-code)}" if code < 0 else f"with code {code}"
        lasted = time.monotonic() - child.began_s
        child.failures = child.failures + 1 if lasted < STEADY_S else 1
        if child.failures > self._config.worker_restarts_max:
            logger.critical(
                "worker %s has ended %s, %d times in a row within %.0f s of its start, so it is left down: its queues "
                "are on disk, the other workers serve theirs. See the lines above for the reason, then restart the node",
                *(name, why, child.failures, STEADY_S),
            )
            return
        pause = min(PAUSE_S * (1 << child.failures - 2), PAUSE_MAX_S) if child.failures > 1 else 0.0
        logger.error("worker %s has ended %s: it is started again", name, why)
        child.due_s = time.monotonic() + pause

    def _name(self, child: _Child) -> str:
        return worker_name(self._config.node, child.number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _noted(number: int, frame: object) -> None:
    """The loop gets the signal's number from the wakeup socket."""
