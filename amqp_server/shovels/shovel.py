"""One shovel while this node runs it: it connects, moves messages, and starts again after a failure."""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Iterator
from typing import Any, Protocol

import trio
from pamqp import commands

from amqp_server.config import Config
from amqp_server.descriptors import Descriptors
from amqp_server.logs import LineLimit
from amqp_server.shovels.budget import Budget, Flow
from amqp_server.shovels.definition import NEVER, QUEUE_LENGTH, Definition
from amqp_server.shovels.dial import Local, dial
from amqp_server.shovels.errors import ShovelError
from amqp_server.shovels.peer import Gate, Peer
from amqp_server.shovels.rewriting import addressing
from amqp_server.shovels.session import ClientSession, Event
from amqp_server.shovels.transfer import NO_ACK, ON_CONFIRM, Transfer
from amqp_server.shovels.uri import MASK, Uri
from amqp_server.wire import methods

logger = logging.getLogger("mqd.shovel")

#: Time for outstanding confirms, and for each connection to close in order, when a shovel stops, s.
FINISH_S, CLOSE_S = 2.0, 2.0
FINISH_LOOK_S = 0.005
#: Time between two checks of the heartbeats, s.
BEAT_S = 0.5
#: Pause after messages that the destination has refused, s: doubled for each consecutive refusal.
REFUSED_PAUSE_S, REFUSED_PAUSE_MAX_S = 0.05, 5.0
#: Errors that end a run and are no defects.
EXPECTED = (ShovelError, OSError, ssl.SSLError, trio.TooSlowError, trio.BrokenResourceError)


class Surroundings(Protocol):
    """The services that all shovels of a node share."""

    config: Config
    local: Local
    log_limit: LineLimit
    descriptors: Descriptors
    budget: Budget

    def cluster_name(self) -> str: ...

    async def completed(self, shovel: Shovel) -> None:
        """Called when the shovel has moved all its messages."""


class Shovel:
    def __init__(self, vhost: str, name: str, definition: Definition, surroundings: Surroundings) -> None:
        self.vhost = vhost
        self.name = name
        self.definition = definition
        self._surroundings = surroundings
        self._config = surroundings.config
        self._restart = trio.Event()
        self._stop = trio.Event()
        #: Set while the shovel is not running.
        self.over = trio.Event()
        self.state = "starting"
        self.reason = ""
        self.changed_s = time.time()
        self.forwarded = 0
        self._transfer: Transfer | None = None
        self._uris: tuple[Uri, Uri] | None = None

    # -- for others ------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the status in RabbitMQ's format."""
        told: dict[str, Any] = {
            "timestamp": _timestamp(self.changed_s),
            "name": self.name,
            "vhost": self.vhost,
            "type": "dynamic",
            "state": self.state,
        }
        if self.state == "terminated":
            told["reason"] = self.reason
        transfer, uris = self._transfer, self._uris
        if self.state == "running" and transfer is not None and uris is not None:
            blocked = self._blocked(transfer)
            told |= {
                "state": blocked,
                "blocked_status": blocked,
                "src_uri": uris[0].shown,
                "src_protocol": self.definition.source_protocol,
                "dest_protocol": self.definition.destination_protocol,
                "dest_uri": uris[1].shown,
                **self.definition.ends,
                "remaining": "unlimited" if transfer.remaining is None else transfer.remaining,
                "remaining_unacked": (
                    "unlimited" if transfer.remaining_unpublished is None else transfer.remaining_unpublished
                ),
                "pending": transfer.unconfirmed_count,
            }
        told["forwarded"] = self.forwarded + (0 if transfer is None else transfer.forwarded)
        return told

    def _blocked(self, transfer: Transfer) -> str:
        if transfer.destination_blocked:
            return "blocked"
        return "flow" if transfer.held and transfer.remaining_unpublished != 0 else "running"

    def restart(self) -> None:
        """Start a new run now."""
        self._restart.set()

    def stop(self) -> None:
        """Stop in order: wait a short time for confirms of published messages, and ack these."""
        self._stop.set()
        self._restart.set()

    # -- the run ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Move messages until stopped, completed, out of time, or cancelled."""
        expired = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                if self.definition.delete_after_s is not None:
                    nursery.start_soon(self._expire, self.definition.delete_after_s, expired)
                while not self._stop.is_set():
                    self._restart = trio.Event()
                    if self._stop.is_set() or not await self._one_run():
                        break
                nursery.cancel_scope.cancel()
            if expired.is_set():
                self._set("terminated", "its time is over (src-delete-after-duration)")
                await self._surroundings.completed(self)
        finally:
            self.over.set()

    async def _expire(self, seconds: int, expired: trio.Event) -> None:
        """Stop when the time is over, counted from the shovel's start: failures do not prolong it."""
        await trio.sleep(seconds)
        expired.set()
        self.stop()

    async def _one_run(self) -> bool:
        """Return False if there is nothing more to do."""
        self._set("starting")
        try:
            if await self._move():
                self._set("terminated", "it has moved all messages that it had to move")
                await self._surroundings.completed(self)
                return False
            return not self._stop.is_set()
        except Exception as error:  # noqa: BLE001 - any end of a run is told, and the next run begins
            self._ended_by(error)
        finally:
            if self._transfer is not None:
                self.forwarded += self._transfer.forwarded
                self._transfer = None
        delay_s = self.definition.reconnect_delay_s
        least_s = self._config.shovel_reconnect_min_ms / 1000
        with trio.move_on_after(max(delay_s, least_s) if delay_s else float("inf")):
            await self._restart.wait()
        return True

    def _ended_by(self, error: Exception) -> None:
        # A separate function: an exception in a variable of the run would be a cycle, which keeps everything
        # that the run held.
        expected = [each for each in _leaves(error) if isinstance(each, EXPECTED)]
        if not expected:
            logger.exception("%s: internal error", self._title, exc_info=error)
        self._failed(expected[0] if expected else ShovelError(f"internal error: {type(error).__name__}"))

    def _failed(self, error: BaseException) -> None:
        text = _why(error)
        for each in (*self.definition.source_uris, *self.definition.destination_uris):
            # The other side may repeat the password in its error.
            if each.password:
                text = text.replace(each.password, MASK)
        self._set("terminated", text)
        if self._surroundings.log_limit.allows("shovel failed", f"{self.vhost}/{self.name}", 10):
            logger.warning("%s has ended: %s", self._title, text)

    @property
    def _title(self) -> str:
        return f"shovel '{self.name}' in vhost '{self.vhost}'"

    def _set(self, state: str, reason: str = "") -> None:
        self.state, self.reason, self.changed_s = state, reason, time.time()

    async def _move(self) -> bool:
        """Connect and move messages. Return True when all messages are moved, False when stopped. Raises
        ShovelError.
        """
        streams: list[trio.abc.Stream] = []
        connected: tuple[Transfer, Peer, Peer] | None = None
        try:
            async with trio.open_nursery() as nursery:
                # The shovel may be stopped or restarted while it connects.
                nursery.start_soon(_cancel_at, self._restart, nursery.cancel_scope)
                connected = await self._connected(streams)
                nursery.cancel_scope.cancel()
            if connected is None:
                return False
            transfer, source, destination = connected
            self._transfer = transfer
            if not transfer.done:
                self._set("running")
                logger.info("%s runs", self._title)
                await self._flow(transfer, source, destination)
            # When the source answers the close, it has the acks.
            await source.close(CLOSE_S)
            await destination.close(CLOSE_S)
            return transfer.done
        finally:
            for stream in streams[:]:
                await self._close(stream, streams)

    async def _close(self, stream: trio.abc.Stream, streams: list[trio.abc.Stream]) -> None:
        streams.remove(stream)
        self._surroundings.descriptors.give()
        await trio.aclose_forcefully(stream)

    async def _connected(self, streams: list[trio.abc.Stream]) -> tuple[Transfer, Peer, Peer]:
        definition, config = self.definition, self._config
        destination, to = await self._open(definition.destination_uris, "destination", streams)
        with trio.fail_after(config.shovel_connect_timeout_s):
            if definition.destination_queue is not None:
                await destination.ensure_queue(
                    definition.destination_queue,
                    definition.destination_queue_arguments,
                    predeclared=definition.destination_predeclared,
                )
            if definition.ack_mode == ON_CONFIRM:
                await destination.ask(methods.make(commands.Confirm.Select))
        source, origin = await self._open(definition.source_uris, "source", streams)
        self._uris = origin, to
        prefetch = min(definition.prefetch or config.shovel_prefetch_max, config.shovel_prefetch_max)
        told = {
            "shovelled-by": self._surroundings.cluster_name(),
            "shovel-type": "dynamic",
            "shovel-name": self.name,
            "shovel-vhost": self.vhost,
            "src-uri": origin.shown,
            "dest-uri": to.shown,
        } | {key.replace("_", "-"): value for key, value in definition.ends.items()}
        with trio.fail_after(config.shovel_connect_timeout_s):
            queue, count = await self._source_queue(source)
            remaining: int | None = None
            if definition.delete_after == QUEUE_LENGTH:
                remaining = count
            elif definition.delete_after != NEVER:
                remaining = int(definition.delete_after)
            transfer = Transfer(
                source.session,
                destination.session,
                addressing(definition, told, lambda: int(time.time())),
                ack_mode=definition.ack_mode,
                prefetch=prefetch,
                bytes_max=config.shovel_bytes_max,
                remaining=remaining,
            )
            if not transfer.done:
                no_ack = definition.ack_mode == NO_ACK
                if not no_ack:
                    await source.ask(methods.make(commands.Basic.Qos, prefetch_count=prefetch))
                await source.ask(
                    methods.make(
                        commands.Basic.Consume,
                        queue=queue,
                        no_ack=no_ack,
                        arguments=definition.consumer_arguments,
                    )
                )
        return transfer, source, destination

    async def _source_queue(self, source: Peer) -> tuple[str, int]:
        definition = self.definition
        if definition.source_queue:
            count = await source.ensure_queue(
                definition.source_queue,
                definition.source_queue_arguments,
                predeclared=definition.source_predeclared,
            )
            return definition.source_queue, count
        declared = await source.ask(methods.make(commands.Queue.Declare, queue="", exclusive=True))
        name = str(getattr(declared, "queue", ""))
        await source.ask(
            methods.make(
                commands.Queue.Bind,
                queue=name,
                exchange=definition.source_exchange,
                routing_key=definition.source_exchange_key,
            )
        )
        return name, 0

    async def _open(
        self, uris: tuple[Uri, ...], which: str, streams: list[trio.abc.Stream]
    ) -> tuple[Peer, Uri]:
        """Connect to one of the URIs, in random order. Raises the last error."""
        left = random.sample(uris, len(uris))
        while True:
            uri = left.pop()
            try:
                return await self._open_one(uri, which, streams), uri
            except EXPECTED as error:
                if not left:
                    raise ShovelError(f"{which} {uri.shown}: {_why(error)}") from None

    async def _open_one(self, uri: Uri, which: str, streams: list[trio.abc.Stream]) -> Peer:
        config = self._config
        name = f"shovel {self.name}"
        timeout_s = min(
            uri.connect_timeout_s or config.shovel_connect_timeout_s, config.shovel_connect_timeout_s
        )
        with trio.fail_after(timeout_s):
            stream = await self._dial(uri, name)
            streams.append(stream)
            session = ClientSession(
                **_login(uri),
                vhost=uri.vhost,
                name=name,
                heartbeat_s=config.shovel_heartbeat_s if uri.heartbeat_s is None else uri.heartbeat_s,
                frame_bytes_max=config.frame_max_bytes,
                body_bytes_max=config.message_bytes_max,
            )
            peer = Peer(stream, session, which)
            try:
                await peer.opened()
            except BaseException:
                # There may be very many other URIs to try.
                await self._close(stream, streams)
                raise
        return peer

    async def _dial(self, uri: Uri, name: str) -> trio.abc.Stream:
        descriptors = self._surroundings.descriptors
        if not descriptors.take():
            raise ShovelError("no more connections are allowed: the descriptors of the node are used up")
        try:
            return await dial(uri, self._config, self._surroundings.local, name)
        except BaseException as error:
            descriptors.give()
            if isinstance(error, OSError):
                descriptors.failed(error)
            raise

    async def _flow(self, transfer: Transfer, source: Peer, destination: Peer) -> None:
        """Move messages until all are moved, or until the shovel is stopped. Raises ShovelError."""
        flow = Flow(self._surroundings.budget, transfer, trio.current_time())
        try:
            await self._flow_within(flow, transfer, source, destination)
        finally:
            flow.end()

    async def _flow_within(self, flow: Flow, transfer: Transfer, source: Peer, destination: Peer) -> None:
        over, restart = trio.Event(), self._restart
        paused_until = 0.0

        def shut() -> bool:
            if transfer.held or restart.is_set() or trio.current_time() < paused_until:
                return True
            return not flow.may_read()

        gate = Gate(shut)
        flow.look = gate.look

        def from_destination(event: Event) -> None:
            nonlocal paused_until
            before = transfer.refusals
            transfer.from_destination(event)
            if transfer.refusals > before:
                # The source redelivers the message at once, and the destination would refuse it again and
                # again.
                pause_s = min(REFUSED_PAUSE_S * 2 ** min(transfer.refusals, 16), REFUSED_PAUSE_MAX_S)
                paused_until = trio.current_time() + pause_s

        def flushed() -> None:
            transfer.flush()
            flow.update()
            source.to_send()
            destination.to_send()
            gate.look()
            if transfer.done:
                over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.write, flushed)
            nursery.start_soon(destination.write, flushed)
            nursery.start_soon(destination.read, from_destination, flushed, None)
            nursery.start_soon(source.read, transfer.from_source, flushed, gate)
            nursery.start_soon(_set_at, restart, over)
            while not over.is_set():
                with trio.move_on_after(BEAT_S):
                    await over.wait()
                source.beat()
                destination.beat()
                flow.check(trio.current_time())
                gate.look()
            # Wait for the confirms of published messages, so that these are not moved twice.
            with trio.move_on_after(FINISH_S):
                while transfer.unconfirmed_count or source.session.outbox.bytes:
                    await trio.sleep(FINISH_LOOK_S)
            nursery.cancel_scope.cancel()


async def _cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _set_at(event: trio.Event, other: trio.Event) -> None:
    await event.wait()
    other.set()


def _login(uri: Uri) -> dict[str, Any]:
    if uri.external or not uri.host and uri.password is None:
        # On this node, the connection itself identifies the user.
        return {"mechanism": "EXTERNAL", "response": b""}
    user, password = uri.user or "guest", uri.password
    if password is None:
        password = "" if uri.user else "guest"
    return {"mechanism": "PLAIN", "response": b"\0" + user.encode() + b"\0" + password.encode()}


def _why(error: BaseException) -> str:
    if isinstance(error, trio.TooSlowError):
        return "no answer in time (shovel_connect_timeout_s)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'the server does not speak TLS'}"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _timestamp(seconds: float) -> str:
    at = time.gmtime(seconds)
    return f"{at.tm_year}-{at.tm_mon:02}-{at.tm_mday:02} {at.tm_hour}:{at.tm_min:02}:{at.tm_sec:02}"
