"""Deliveries as they come from a socket, for a consumer that stores them unchanged."""

from __future__ import annotations

from typing import Any

from spark_sink.source.deliveries import Run, Splitter


class RunIntake:
    """A `client.connection.Intake` of whole deliveries. All calls but the constructor on the connection's
    thread.
    """

    def __init__(self) -> None:
        self._splitter = Splitter()

    def take(self, data: bytes, start: int, end: int) -> int:
        stop = self._splitter.take(data, start, end)
        if self._splitter.runs:
            runs, self._splitter.runs = self._splitter.runs, []
            self.arrived(runs)
        return stop

    def content(self, method: Any, properties: Any, body: bytes) -> None:
        """`take` handles all deliveries, and there are no publishes that could be returned."""

    def arrived(self, runs: list[Run]) -> None:
        raise NotImplementedError

    def answered(self) -> None:
        """An answer to a method has come after the messages that have arrived."""

    def ended(self) -> None:
        """The connection is over."""
        raise NotImplementedError
