"""The process that writes tables, as the broker sees it: started when there is something to write, and again
if it has ended. It is a process of its own, because making rows of messages would hold up the loop, and the
libraries for it need much memory.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import msgspec

from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.table import Job, encode_job
from persistence.streams.remote.upload import Stopping

if TYPE_CHECKING:
    # Most nodes need none, and a start should be short.
    import subprocess

#: The program. It finds modules where this process finds them.
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from stream_tables.__main__ import main; main()"
)
#: Answers: done, the store fails, something else failed.
WORKS, UNAVAILABLE, FAILED = "works", "unavailable", "failed"
#: Time without a job after which the process ends.
IDLE_S: Final = 60.0
_LENGTH_BYTES: Final = 4
_answer_decoder = msgspec.msgpack.Decoder(tuple[str, int, str])


class Settings(NamedTuple):
    """What the process knows of the configuration."""

    #: See amqp_server.startup.stream_remotes.
    remotes: tuple[str, ...]
    #: Bytes of messages after which a row group ends.
    group_bytes: int
    #: Time for one job, after which the process is killed.
    timeout_s: float
    idle_s: float = IDLE_S


class TableProcess:
    """A thread calls `do`, one job at a time; `stop` may be called by another one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def do(self, job: Job) -> int:
        """Let the process do a job; return what it answers. Raises Unavailable, Stopping, RuntimeError."""
        data = encode_job(job)
        late: list[bool] = []
        answer = self._ask(self._running(fresh=False), data, late)
        if answer is None and not late:
            # It had nothing to do for a while, and ended.
            answer = self._ask(self._running(fresh=True), data, late)
        if self._stopped:
            raise Stopping
        if late:
            raise Unavailable(
                f"the process that writes tables did not come to an end within {self._settings.timeout_s:.0f} s "
                "(stream_table_timeout_ms) and was killed"
            )
        if answer is None:
            raise Unavailable("the process that writes tables has ended; its log is that of the broker")
        kind, found, text = answer
        if kind == UNAVAILABLE:
            raise Unavailable(text)
        if kind == FAILED:
            raise RuntimeError(text)
        return found

    def _running(self, *, fresh: bool) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Stopping
            process = self._process
            if process is not None and (fresh or process.poll() is not None):
                _end(process)
                process = None
            if process is None:
                process = self._process = self._started()
            return process

    def _started(self) -> subprocess.Popen[bytes]:
        import subprocess

        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            raise Unavailable(f"the process that writes tables does not start: {error}") from error
        assert process.stdin is not None
        # Whether it has ended is seen when it is asked.
        with suppress(OSError):
            write_frame(process.stdin, msgspec.msgpack.encode(self._settings))
        return process

    def _ask(
        self, process: subprocess.Popen[bytes], data: bytes, late: list[bool]
    ) -> tuple[str, int, str] | None:
        """Return the answer; None if the process has ended, or was killed because it was late."""
        assert process.stdin is not None and process.stdout is not None

        def kill() -> None:
            late.append(True)
            process.kill()

        # A store or a catalog may never answer, and other streams wait.
        timer = threading.Timer(self._settings.timeout_s, kill)
        timer.daemon = True
        timer.start()
        try:
            write_frame(process.stdin, data)
            frame = read_frame(process.stdout)
        except (OSError, ValueError):
            return None
        finally:
            timer.cancel()
        return None if frame is None else _answer_decoder.decode(frame)

    def stop(self) -> None:
        """The node ends: a job in progress ends with Stopping."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                _end(self._process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    # Who reads from it comes to the end.
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def write_frame(file: IO[bytes], data: bytes) -> None:
    """Raises OSError."""
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes | None:
    """Return the next frame; None at the end. Raises OSError."""
    size = file.read(_LENGTH_BYTES)
    if len(size) < _LENGTH_BYTES:
        return None
    data = file.read(int.from_bytes(size, "big"))
    return data if len(data) == int.from_bytes(size, "big") else None


__all__ = ["FAILED", "UNAVAILABLE", "WORKS", "Settings", "TableProcess", "read_frame", "write_frame"]
