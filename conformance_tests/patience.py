"""How long is waited for what takes milliseconds on an idle machine, and seconds on one with other work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import pika

PATIENCE_S = 60.0
#: For a test of which a broker is known to fail: more would be waited in vain.
BRIEF_S = 2.0

P = TypeVar("P", bound=Any)

_wait_s = PATIENCE_S


def wait_s() -> float:
    """How long to wait for what is to come."""
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
    """pika's own limits, 10 s to connect and 15 s until the connection is open, taken up to ours."""
    parameters.socket_timeout = PATIENCE_S
    parameters.stack_timeout = 1.5 * PATIENCE_S
    return parameters


def open_connection(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(patient(pika.URLParameters(url)))
