"""Handshakes of many strangers: one at a time takes its milliseconds, and other tasks go on in between."""

from __future__ import annotations

import contextlib
import socket
import ssl

import trio
import trustme

from conformance_tests.patience import PATIENCE_S
from quorum_queue.links.wire import TlsWire

STRANGERS = 10


class Passes(trio.abc.Instrument):
    """Counts steps of handshakes within each pass of the loop."""

    def __init__(self) -> None:
        self.steps = self.most = self.all = 0

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, self.steps)
        self.steps = 0

    def note(self) -> None:
        self.steps += 1
        self.all += 1


async def test_one_handshake_in_each_pass_of_the_loop() -> None:
    authority, passes = trustme.CA(), Passes()

    class Counted(ssl.SSLObject):
        def do_handshake(self) -> None:
            passes.note()
            super().do_handshake()

    theirs, ours = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(theirs)
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    ours.sslobject_class = Counted
    turnstile = trio.Lock()
    with contextlib.ExitStack() as sockets, trio.fail_after(PATIENCE_S):
        pairs = [socket.socketpair() for _ in range(STRANGERS)]
        for sock in [each for pair in pairs for each in pair]:
            sockets.enter_context(sock)
            sock.setblocking(False)
        trio.lowlevel.add_instrument(passes)
        async with trio.open_nursery() as nursery:
            for here, there in pairs:
                nursery.start_soon(TlsWire(here, ours, server_host=None).handshake, turnstile)
                nursery.start_soon(TlsWire(there, theirs, server_host="127.0.0.1").handshake)
        trio.lowlevel.remove_instrument(passes)
    assert passes.all >= 2 * STRANGERS
    assert passes.most == 1
