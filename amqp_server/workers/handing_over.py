"""Moves connections between the workers of a node.

The socket itself goes over, with the state of its session and what the client has sent last: the client
notices nothing. Both travel as descriptors over a Unix socket (SCM_RIGHTS), the state in a file in memory, so
it may have any size.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from amqp_server.cluster.membership.machines import machine_of, number_of
from amqp_server.connection.handed_over import (
    Farewell,
    SessionState,
    decode,
    decode_farewell,
    encode,
    is_quiet,
    state_of,
)
from amqp_server.workers.affinity import READS_MAX, Place, place_of
from amqp_server.workers.worker import CONNECTION, LINK, LOOK

if TYPE_CHECKING:
    from amqp_server.connection.sockets.transport import Transport
    from amqp_server.turn import Turn
    from amqp_server.workers.worker import Worker

logger = logging.getLogger("mqd.workers")

#: Connections taken over before clients have their turn.
TAKEN_MAX: Final = 16
#: Bytes of a message, beside the descriptors: what is told of a connection that is lost on its way.
MESSAGE_BYTES: Final = 4_096
#: Pause after an error of the kernel, such as no free descriptor, s.
PAUSE_S: Final = 0.1


class HandingOver:
    """See connection.sockets.transport.Affinity."""

    def __init__(
        self,
        worker: Worker,
        adopt: Callable[[socket.socket, SessionState], None],
        turn: Turn,
        look: Callable[[], None],
        take_link: Callable[[socket.socket], None],
        linked: Callable[[], Collection[str]],
        was_lost: Callable[[Farewell], None],
    ) -> None:
        """`look` looks at what an operator has set; `take_link` takes another node's connection; `linked`
        returns the workers and nodes that answer; `was_lost` hears of a client's connection that can't be
        taken.
        """
        self._worker = worker
        self._machine = machine_of(worker.config.node)
        self._adopt = adopt
        self._turn = turn
        self._look = look
        self._take_link = take_link
        self._linked = linked
        self._was_lost = was_lost
        worker.settings_changed = self._tell_others

    def _tell_others(self) -> None:
        for number, outbox in enumerate(self._worker.outboxes):
            if number != self._worker.number:
                # One whose way is full looks twice a second in any case.
                with suppress(OSError):
                    outbox.send(LOOK, socket.MSG_DONTWAIT)

    def moves(self, transport: Transport, data: bytes) -> bool:
        session = transport.session
        if not session.incoming.is_idle:
            return False
        place = place_of(session, data)
        transport.looks += 1
        if place is Place.HERE or transport.looks > READS_MAX:
            transport.affinity = None
            return False
        if isinstance(place, Place) or not (transport.is_quiet and is_quiet(session)):
            # Perhaps the next read can say more, or nothing is under way then.
            return False
        number = number_of(place)
        if (
            machine_of(place) != self._machine
            or not self._worker.serves(number)
            # One that stands still would let the client wait; here it learns that its queue is not served.
            or place not in self._linked()
        ):
            transport.affinity = None
            return False
        return self._hand_over(transport, data, number)

    def _hand_over(self, transport: Transport, data: bytes, number: int) -> bool:
        session = transport.session
        try:
            self._send(transport.fd, state_of(session, data), self._worker.outboxes[number])
        except OSError as error:
            # The way is full, or there are no descriptors: it is served here.
            logger.debug("%s stays: %s", session.client.name, error)
            return False
        logger.debug("%s goes on in worker %d", session.client.name, number)
        session.given_away()
        # It must not be read here any more, not even once.
        transport.end()
        return True

    def _send(self, fd: int, state: SessionState, outbox: socket.socket) -> None:
        farewell = Farewell.of(state).encoded(MESSAGE_BYTES - len(CONNECTION))
        with open(os.memfd_create("mqd-connection"), "wb", buffering=0) as file:
            left = memoryview(encode(state))
            while left:
                left = left[file.write(left) :]
            socket.send_fds(outbox, [CONNECTION, farewell], [fd, file.fileno()], socket.MSG_DONTWAIT)

    async def run(self) -> None:
        """Take connections over, of clients and of other nodes, until cancelled."""
        inbox = self._worker.inbox
        inbox.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(inbox)
            for _ in range(TAKEN_MAX):
                try:
                    message, descriptors, _, _ = socket.recv_fds(inbox, MESSAGE_BYTES, 2)
                except BlockingIOError:
                    break
                except OSError as error:
                    logger.error("a connection cannot be taken over: %s", error)
                    await trio.sleep(PAUSE_S)
                    break
                if message == LOOK:
                    self._look()
                else:
                    self._take(message, descriptors)

    def _take(self, message: bytes, descriptors: list[int]) -> None:
        if len(descriptors) < (1 if message == LINK else 2):
            # The process had no descriptor for it.
            for each in descriptors:
                os.close(each)
            logger.error("a connection is lost on its way between workers: no descriptors are left")
            if message != LINK:
                self._turn.run(self._was_lost, decode_farewell(message[len(CONNECTION) :]))
            return
        sock = socket.socket(fileno=descriptors[0])
        if message == LINK:
            self._take_link(sock)
            return
        with open(descriptors[1], "rb") as file:
            file.seek(0)
            state = decode(file.read())
        self._turn.run(self._adopt, sock, state)
