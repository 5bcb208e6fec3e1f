"""The process that writes tables: reads jobs from its standard input, and answers on its standard output.

A frame is the length of its content in 4 bytes, and the content. The first frame has the settings. It ends
with its input, also in the middle of a job: the broker that it works for has ended.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import traceback
from queue import Empty, SimpleQueue
from typing import BinaryIO, Final

import msgspec

from amqp_server.startup.remotes import open_remote
from amqp_server.startup.stream_remotes import parse_remote
from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.table import decode_job
from persistence.streams.remote.table_process import (
    FAILED,
    UNAVAILABLE,
    WORKS,
    Settings,
    read_frame,
    write_frame,
)
from stream_tables.work import Tables

#: Niceness: clients of the broker go first.
NICENESS: Final = 5


def main() -> None:
    code = 1
    try:
        _serve()
        code = 0
    except BaseException:  # noqa: BLE001  # It ends.
        traceback.print_exc()
    finally:
        # The thread that waits for input holds a lock that an orderly end would want.
        os._exit(code)


def _serve() -> None:
    # The broker says when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints is no answer.
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, format="stream_tables: %(message)s")
    data = read_frame(sys.stdin.buffer)
    if data is None:
        return
    settings = msgspec.msgpack.decode(data, type=Settings)
    remotes = {each.name: each for each in map(parse_remote, settings.remotes) if each is not None}
    tables = Tables(remotes, open_remote, settings.group_bytes)
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_jobs, args=(sys.stdin.buffer, jobs), daemon=True).start()
    while True:
        try:
            job = jobs.get(timeout=settings.idle_s)
        except Empty:
            # Its memory is worth more than a start.
            return
        write_frame(answers, msgspec.msgpack.encode(_answer(tables, job)))
        gc.collect()


def _read_jobs(frames: BinaryIO, jobs: SimpleQueue[bytes]) -> None:
    while (frame := read_frame(frames)) is not None:
        jobs.put(frame)
    os._exit(0)


def _answer(tables: Tables, data: bytes) -> tuple[str, int, str]:
    try:
        return WORKS, tables.do(decode_job(data)), ""
    except Unavailable as error:
        return UNAVAILABLE, 0, str(error)
    except Exception as error:  # The broker logs it, and tries again later.
        logging.getLogger("stream_tables").exception("a job failed")
        return FAILED, 0, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
