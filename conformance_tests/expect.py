"""Expectations of tests: refusals of the broker, and changes that happen soon."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pika.exceptions
import pytest

from conformance_tests.patience import wait_s

T = TypeVar("T")


@contextmanager
def expect_channel_close(code: int, text_regex: str) -> Iterator[None]:
    """The body of the block must have its channel closed with this code and a text that matches.

    A publish is asynchronous: follow it by something that waits for the broker
    (`ch.queue_declare(passive=True)` or `connection.process_data_events(1)` with `ch.basic_publish` again),
    or use the raw client.
    """
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
        yield
    check_close(info.value.reply_code, info.value.reply_text, code, text_regex)


@contextmanager
def expect_connection_close(code: int, text_regex: str) -> Iterator[None]:
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as info:
        yield
    check_close(info.value.reply_code, info.value.reply_text, code, text_regex)


def check_close(got_code: int, got_text: str, code: int, text_regex: str) -> None:
    assert (got_code, bool(re.search(text_regex, got_text))) == (code, True), f"{got_code} {got_text!r}"
    assert len(got_text.encode()) <= 255


def eventually(probe: Callable[[], T], timeout_s: float | None = None) -> T:
    """Return the first truthy result of `probe`. Only for states that just `ctl` can show, never where a
    frame can be awaited.
    """
    deadline = time.monotonic() + (timeout_s or wait_s())
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() > deadline:
            pytest.fail(f"still {result!r} after {timeout_s or wait_s()} s")
        time.sleep(0.02)
