"""The states of a connection (spec 2.2.4)."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """State of a connection."""

    HEADER = "header"
    STARTING = "starting"
    AUTHENTICATING = "authenticating"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    #: connection.close was sent; waits for close-ok.
    CLOSING = "closing"
    CLOSED = "closed"
