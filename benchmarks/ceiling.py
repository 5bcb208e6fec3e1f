"""The client's own upper limit: the same loop against a peer that decodes nothing and answers with prepared
bytes.
"""

from __future__ import annotations

import multiprocessing
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pamqp import commands, frame

from .client import HOST
from .clock import QUEUE, WIRE, Clock, percentiles
from .frames import ack_through, message
from .pump import READ_BYTES, Consumer, Pace, Publisher, Stream, pump
from .settled import Settled
from .streams import MESSAGES_MAX, Route, Terms, properties

MARK = b"0123456789"
BODY_BYTES = 128
ANSWER_MESSAGES = 5_000


LATENCY_RATES = (5_000, 20_000)

Serve = Callable[[socket.socket, socket.socket], None]


@dataclass(frozen=True, slots=True)
class Ceiling:
    name: str
    value: float
    unit: str


def ceilings(run_s: float) -> list[Ceiling]:
    plain = message("", QUEUE, bytes(BODY_BYTES), properties())
    marked = message("", QUEUE, bytes(BODY_BYTES), properties(message_id=MARK.decode()))
    rates = {
        "transient, auto-ack": _rate(run_s, Route([QUEUE], [plain]), Terms()),
        "all headers different": _rate(run_s, Route([QUEUE], [marked], MARK), Terms()),
        "confirms, window 1000": _rate(run_s, Route([QUEUE], [plain]), Terms(None, 1_000)),
        "confirms and an ack for each message": _rate(run_s, Route([QUEUE], [plain]), Terms(500, 1_000)),
    }
    return [
        *(Ceiling(name, rate / 1e6, "M msg/s") for name, rate in rates.items()),
        *(ceiling for rate in LATENCY_RATES for ceiling in _latency(rate, run_s)),
    ]


def _rate(run_s: float, route: Route, terms: Terms) -> float:
    publish = route.messages[0]
    delivery = _delivery(publish)
    confirms = terms.confirm_window is not None

    def serve(out: socket.socket, back: socket.socket) -> None:
        _answer(out, back, len(publish), delivery, confirms)

    with _peer(serve) as (out, back):
        consumer = Consumer(back, len(delivery), None if terms.prefetch is None else 1)
        publisher = Publisher(
            out,
            route.blocks(terms.confirm_window or route.window),
            [consumer],
            route.window,
            MESSAGES_MAX * 4,
            Settled(MESSAGES_MAX * 4) if confirms else None,
            terms.confirm_window or 0,
        )
        return pump([Stream(publisher, [consumer])], Pace(0.2, run_s), lambda: 0.0).rate


def _latency(rate: int, run_s: float) -> Iterator[Ceiling]:
    """The latency of the client, the kernel and a peer that only echoes: no broker can be measured to be
    faster.
    """
    with _peer(_echo) as (out, back):
        clock = Clock(out, back, len(_delivery(WIRE)), rate, int(rate * run_s))
        clock.run()
    found = percentiles("own", clock.delivered)
    for key in ("p50", "p99"):
        yield Ceiling(f"latency at {rate:,} msg/s, {key}", found[f"own_{key}_ms"], "ms")


@contextmanager
def _peer(serve: Serve) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connections to a process that serves them until they close."""
    with socket.create_server((HOST, 0)) as listener:

        def accept() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with suppress(ConnectionError):
                serve(listener.accept()[0], listener.accept()[0])

        peer = multiprocessing.get_context("fork").Process(target=accept, daemon=True)
        peer.start()
        address = listener.getsockname()
        try:
            with socket.create_connection(address) as out, socket.create_connection(address) as back:
                for sock in (out, back):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield out, back
        finally:
            peer.join(5)
            peer.terminate()


def _delivery(publish: bytes) -> bytes:
    """The delivery that a broker would make from this publish: another method, the same content."""
    method_bytes = int.from_bytes(publish[3:7], "big") + 8
    deliver = commands.Basic.Deliver(
        consumer_tag="bench", delivery_tag=1, redelivered=False, exchange="", routing_key=QUEUE
    )
    return frame.marshal(deliver, 1) + publish[method_bytes:]


def _answer(
    out: socket.socket, back: socket.socket, publish_bytes: int, delivery: bytes, confirms: bool
) -> None:
    """Count publishes, and send as many deliveries."""
    answers = memoryview(delivery * ANSWER_MESSAGES)
    scratch = bytearray(READ_BYTES)
    poll = select.poll()
    poll.register(out, select.POLLIN)
    poll.register(back, select.POLLIN)
    received = answered = 0
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if back.fileno() in ready and not back.recv_into(scratch):
            return
        if out.fileno() not in ready:
            continue
        n = out.recv_into(scratch)
        if not n:
            return
        received += n
        while due := min(received // publish_bytes - answered, ANSWER_MESSAGES):
            back.sendall(answers[: due * len(delivery)])
            answered += due
            if confirms:
                out.sendall(ack_through(answered))


def _echo(out: socket.socket, back: socket.socket) -> None:
    """Return each message in a delivery with its content, and confirm it."""
    back.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    delivery = _delivery(WIRE)
    start = delivery[: len(delivery) - BODY_BYTES - 1]
    rest = b""
    echoed = 0
    while data := out.recv(READ_BYTES):
        data = rest + data
        ends = range(len(WIRE), len(data) + 1, len(WIRE))
        rest = data[len(ends) * len(WIRE) :]
        if ends:
            back.sendall(b"".join(start + data[end - BODY_BYTES - 1 : end] for end in ends))
            echoed += len(ends)
            out.sendall(ack_through(echoed))
