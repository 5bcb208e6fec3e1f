"""How long to wait for events that take milliseconds on an idle machine, and seconds on a busy one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import pika

PATIENCE_S = 60.0
#: For a test that is known to fail on a broker: a longer wait would be useless.
BRIEF_S = 2.0

P = TypeVar("P", bound=Any)

_wait_s = PATIENCE_S


def wait_s() -> float:
    """How long to wait for an expected event."""
    return _wait_s


@contextlib.contextmanager
def brief() -> Iterator[None]:
    global _wait_s
    _wait_s = BRIEF_S
    try:
        yield
    finally:
        _wait_s = PATIENCE_S


def patient(parameters: P) -> P:
    """Raise pika's own limits, 10 s to connect and 15 s until the connection is open, to ours."""
    parameters.socket_timeout = PATIENCE_S
    parameters.stack_timeout = 1.5 * PATIENCE_S
    return parameters


def open_connection(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(patient(pika.URLParameters(url)))
