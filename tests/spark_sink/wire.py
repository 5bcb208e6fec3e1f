"""Deliveries as a broker sends them, made with pamqp: another codec than the one under test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pamqp import body, commands, frame, header

from spark_sink.source.deliveries import OVERHEAD_BYTES, U32, Run, Splitter

FRAME_MAX = 131_072


@dataclass(frozen=True)
class Message:
    body: bytes = b""
    exchange: str = ""
    routing_key: str = "q"
    properties: dict[str, Any] = field(default_factory=dict)


def delivery(
    message: Message, tag: int, redelivered: bool = False, frame_max: int = FRAME_MAX, **more: Any
) -> bytes:
    deliver = commands.Basic.Deliver("spark", tag, redelivered, message.exchange, message.routing_key)
    properties = commands.Basic.Properties(**{**message.properties, **more})
    parts = [
        frame.marshal(deliver, 1),
        frame.marshal(header.ContentHeader(0, len(message.body), properties), 1),
    ]
    step = frame_max - OVERHEAD_BYTES
    for start in range(0, len(message.body), step):
        parts.append(frame.marshal(body.ContentBody(message.body[start : start + step]), 1))
    return b"".join(parts)


def run_of(*bodies: bytes, tag: int = 1, redelivered: bool = False, **properties: Any) -> Run:
    data = b"".join(
        delivery(Message(each, properties=properties), tag + index, redelivered)
        for index, each in enumerate(bodies)
    )
    splitter = Splitter()
    assert splitter.take(data, 0, len(data)) == len(data)
    [run] = splitter.runs
    return run


class Reader:
    """Handles a stream of bytes as a connection does: frames that the splitter leaves are taken one by
    one.
    """

    def __init__(self) -> None:
        self.splitter = Splitter()
        self.others: list[bytes] = []
        self._rest = b""

    def feed(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while True:
            at = self.splitter.take(data, at, len(data))
            if len(data) - at < OVERHEAD_BYTES:
                break
            end = at + U32.unpack_from(data, at + 3)[0] + OVERHEAD_BYTES
            if end > len(data):
                break
            self.others.append(data[at:end])
            at = end
        self._rest = data[at:]

    @property
    def whole(self) -> bool:
        return not self._rest
