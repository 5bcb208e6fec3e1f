"""What a line of the log looks like, and how many of a kind there may be."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Any

#: Structured fields of a line, beside its message; see `extra` in the calls.
FIELDS = ("connection", "peer", "user", "vhost", "channel")

#: Pairs of a source and a kind that are counted; further sources are counted together.
_PAIRS_MAX = 10_000
#: Sources that a summary names.
_NAMED_MAX = 5

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def one_line(text: str) -> str:
    """Escape what would break the line or move the cursor: names are chosen by clients."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        # Imported when it is asked for: a node that writes text starts without it.
        import msgspec

        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for field in FIELDS:
            if field in record.__dict__:
                told[field] = record.__dict__[field]
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def begin(level: str, format: str) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[format]())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())


class LineLimit:
    """How often an address or a user may cause lines of one kind; what is beyond is counted, and said in one line.

    Whoever can make the node log can fill its disk, and hide what others do among it.
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
        """Return one text for each kind of which lines were left out since the last call, and begin anew."""
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
