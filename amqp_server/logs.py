"""The format of log lines, the limits for lines of one kind, and the thread that writes them.

The reader of stderr may stop reading, for example because its disk is full. A write then blocks, so a thread
writes; lines wait in a queue with a size limit, and lines that do not fit are counted.
"""

from __future__ import annotations

import copy
import io
import logging
import logging.handlers
import os
import queue
import select
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Any

#: Structured fields of a line, besides its message; see `extra` in the calls.
FIELDS = ("connection", "peer", "user", "vhost", "channel")

#: Maximum number of (kind, source) pairs that are counted separately; further sources share one count.
_PAIRS_MAX = 10_000
#: Sources that a summary names.
_NAMED_MAX = 5

TEXT = "%(asctime)s %(levelname)s %(name)s%(process_name)s: %(message)s"

#: Which of a node's processes this is, if it has several; it stands behind the name of the logger.
_process = ""


def name_process(name: str) -> None:
    """Let each line say which process it comes from."""
    global _process
    _process = name


def one_line(text: str) -> str:
    """Escape characters that would break the line or move the cursor: clients choose names."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        record.process_name = f" [{_process}]" if _process else ""
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        # Imported on demand: a node that logs text does not need it.
        import msgspec

        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if _process:
            told["worker"] = _process
        for field in FIELDS:
            if field in record.__dict__:
                told[field] = record.__dict__[field]
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


#: Time to write the remaining lines before the process ends, s.
END_TIMEOUT_S = 2.0


class LogQueue(logging.handlers.QueueHandler):
    """Takes formatted lines. Never waits."""

    def __init__(self, lines_max: int) -> None:
        self.lines: queue.Queue[Any] = queue.Queue(lines_max)
        super().__init__(self.lines)
        #: Lines for which there was no room.
        self.dropped = 0
        self.writer = Writer(self)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # Formatted here and not in the thread: objects in the record may change, and its traceback keeps many
        # objects alive.
        ready = copy.copy(record)
        ready.msg, ready.args, ready.exc_info = self.format(record), None, None
        return ready

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.lines.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def written(self, timeout_s: float) -> bool:
        """Wait until all lines are written; False if that takes too long."""
        lines = self.lines
        with lines.all_tasks_done:
            return lines.all_tasks_done.wait_for(lambda: not lines.unfinished_tasks, timeout_s)


class Writer(logging.handlers.QueueListener):
    """Writes to stderr in a thread."""

    def __init__(self, source: LogQueue) -> None:
        super().__init__(source.lines)
        self._source = source

    def handle(self, record: logging.LogRecord) -> None:
        _write(record.msg)
        source = self._source
        if source.dropped and source.lines.empty():
            dropped, source.dropped = source.dropped, 0
            text = f"{dropped} lines were not logged: nobody read stderr"
            _write(
                source.format(logging.LogRecord("mqd.log", logging.WARNING, __file__, 0, text, None, None))
            )


def _write(line: str) -> None:
    """Write without Python's buffer: a thread that waits while it holds the buffer's lock would keep the
    process from ending.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, io.UnsupportedOperation):
        print(line, file=sys.stderr, flush=True)
        return
    left = memoryview(f"{line}\n".encode(errors="backslashreplace"))
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select((), (descriptor,), ())
        except OSError:
            return


def begin(level: str, format: str, queue_lines_max: int) -> None:
    """Log to stderr from now on. If logging had begun before, only its format changes."""
    root = logging.getLogger()
    handler = _queue()
    if handler is None:
        for old in root.handlers[:]:
            root.removeHandler(old)
        handler = LogQueue(queue_lines_max)
        root.addHandler(handler)
        handler.writer.start()
    handler.setFormatter(FORMATTERS[format]())
    set_level(level)


class _DirectHandler(logging.Handler):
    """Writes at once, and has no thread: for a process that forks."""

    def emit(self, record: logging.LogRecord) -> None:
        _write(self.format(record))


def begin_directly(level: str, format: str) -> None:
    """Log to stderr without a thread. `begin` ends this."""
    handler = _DirectHandler()
    handler.setFormatter(FORMATTERS[format]())
    logging.getLogger().addHandler(handler)
    set_level(level)


def end() -> None:
    """Before the process ends, let the thread write the remaining lines, unless stderr is not read."""
    handler = _queue()
    if handler is not None:
        handler.written(END_TIMEOUT_S)


def _queue() -> LogQueue | None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogQueue):
            return handler
    return None


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())


class LineLimit:
    """Limits how often an address or a user may cause lines of one kind; further lines are counted, and one
    line reports the count.

    A client that can make the node log without bound could fill its disk, and hide what other clients do.
    """

    def __init__(self, lines_max: int) -> None:
        self.lines_max = lines_max
        #: (kind, source) -> lines asked for since the last summary.
        self._asked: Counter[tuple[str, str]] = Counter()
        #: (kind, source) -> lines left out.
        self._left_out: Counter[tuple[str, str]] = Counter()

    def allows(self, kind: str, source: str, lines_max: int | None = None) -> bool:
        """True if a line of this kind may be logged for this source."""
        pair = kind, source
        if pair not in self._asked and len(self._asked) >= _PAIRS_MAX:
            pair = kind, "others"
        self._asked[pair] += 1
        if self._asked[pair] <= (self.lines_max if lines_max is None else lines_max):
            return True
        self._left_out[pair] += 1
        return False

    def summaries(self) -> list[str]:
        """Return one text for each kind with lines left out since the last call, and reset the counts."""
        by_kind: dict[str, Counter[str]] = {}
        for (kind, source), count in self._left_out.items():
            by_kind.setdefault(kind, Counter())[source] += count
        self._asked.clear()
        self._left_out.clear()
        return [_summary(kind, sources) for kind, sources in by_kind.items()]


def _summary(kind: str, sources: Counter[str]) -> str:
    named = [f"{count} of {source}" for source, count in sources.most_common(_NAMED_MAX)]
    if len(sources) > _NAMED_MAX:
        named.append(f"the rest of {len(sources) - _NAMED_MAX} more")
    return f"{kind}: {sources.total()} more, not logged one by one: {', '.join(named)}"
