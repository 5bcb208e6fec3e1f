"""What the text of an option means: a function takes the option's name and its text, and returns the value.

All raise BadOption, with a text that names the option and shows what would be right.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlsplit

SHORTSTR_BYTES_MAX = 255
#: It becomes a part of message ids and of the names of queues, which are short strings themselves.
APP_ID_BYTES_MAX = 200

#: In JSON of offsets, as the Kafka source has it.
EARLIEST, LATEST = -2, -1
#: A number for each partition of each stream; the name is empty if the JSON has only numbers of partitions.
ByPartition: TypeAlias = dict[str, dict[int, int]]
Offsets: TypeAlias = Literal["earliest", "latest"] | ByPartition

#: As Spark writes times; without a unit they are milliseconds.
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}
#: The end of the year 9999, the last one of Python's dates.
MOMENT_MS_MAX = 253_402_300_799_000
DURATION_MS_MAX = 10 * 365 * 86_400_000
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")


class BadOption(ValueError):
    """The text names the option, and what would be right."""


class StoreUrl(NamedTuple):
    """An object store, as the broker's option stream_remotes names it."""

    scheme: Literal["file", "s3", "gs"]
    #: A directory; or bucket and prefix. Without a slash at its end.
    path: str
    region: str = ""
    endpoint: str = ""
    #: True: without TLS.
    allow_http: bool = False

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"


def text(name: str, value: str) -> str:
    return value


def short(name: str, value: str) -> str:
    most = APP_ID_BYTES_MAX if name == "txnAppId" else SHORTSTR_BYTES_MAX
    if len(value.encode()) > most:
        raise BadOption(f"option '{name}' is longer than {most} bytes")
    return value


def flag(name: str, value: str) -> bool:
    try:
        return {"true": True, "false": False}[value.strip().lower()]
    except KeyError:
        raise BadOption(f"option '{name}' must be true or false, not {value!r}") from None


def number(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        try:
            found = int(value)
        except ValueError:
            raise BadOption(f"option '{name}' must be a whole number, not {value!r}") from None
        if not least <= found <= most:
            raise BadOption(f"option '{name}' must be between {least} and {most}, not {found}")
        return found

    return read


def choice(*choices: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        found = {each.lower(): each for each in choices}.get(value.strip().lower())
        if found is None:
            *first, last = choices
            known = f"{', '.join(first)} or {last}"
            raise BadOption(f"option '{name}' must be {known}, not {value!r}{nearest(value, choices)}")
        return found

    return read


def offsets(name: str, value: str) -> Offsets:
    """`earliest`, `latest`, or JSON as the Kafka source takes it."""
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return "earliest" if word == "earliest" else "latest"
    wrong = BadOption(
        f'option \'{name}\' must be earliest, latest or JSON such as {{"0": 17, "1": -2}} or '
        f'{{"orders": {{"0": 17}}}}, not {value!r}'
    )

    def offset(found: object) -> int:
        if type(found) is not int or not EARLIEST <= found < 2**63:
            raise wrong
        return found

    return _by_partition(value, offset, wrong)


def moment(name: str, value: str) -> int:
    """Milliseconds since 1970."""
    found = value.strip()
    if found.isdecimal():
        if int(found) > MOMENT_MS_MAX:
            raise BadOption(f"option '{name}' is after the year 9999: {value!r}; it counts milliseconds")
        return int(found)
    try:
        time = datetime.fromisoformat(found)
    except ValueError:
        raise BadOption(
            f"option '{name}' must be ms since 1970 or a time such as 2026-01-31T12:00:00+00:00, not {value!r}"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    if time.timestamp() < 0:
        raise BadOption(f"option '{name}' is before 1970: {value!r}")
    return int(time.timestamp() * 1_000)


def moments(name: str, value: str) -> ByPartition:
    """JSON with a time for each partition, each as `moment` takes it."""
    wrong = BadOption(
        f'option \'{name}\' must be JSON such as {{"0": 1767225600000}} or {{"orders": {{"0": '
        f'"2026-01-31T12:00:00+00:00"}}}}, not {value!r}'
    )

    def time(found: object) -> int:
        if isinstance(found, str) or (type(found) is int and found >= 0):
            return moment(name, str(found))
        raise wrong

    return _by_partition(value, time, wrong)


def _by_partition(value: str, read: Callable[[object], int], wrong: BadOption) -> ByPartition:
    found = _json(value, wrong)
    nested = [isinstance(each, dict) for each in found.values()]
    if not all(nested):
        if any(nested):
            raise wrong
        found = {"": found}
    by_name: ByPartition = {}
    for stream, inner in found.items():
        if not inner or not all(partition.isdecimal() for partition in inner):
            raise wrong
        by_name[stream] = {int(partition): read(each) for partition, each in inner.items()}
    return by_name


def assignment(name: str, value: str) -> dict[str, tuple[int, ...]]:
    """JSON with the partitions of each stream that are to be read."""
    wrong = BadOption(f"option '{name}' must be JSON such as {{\"orders\": [0, 1]}}, not {value!r}")
    by_name: dict[str, tuple[int, ...]] = {}
    for stream, numbers in _json(value, wrong).items():
        if not stream or not isinstance(numbers, list) or not numbers:
            raise wrong
        if not all(type(each) is int and each >= 0 for each in numbers):
            raise wrong
        by_name[short(name, stream)] = tuple(sorted(set(numbers)))
    return by_name


def _json(value: str, wrong: BadOption) -> Mapping[str, Any]:
    """Return a JSON object that is not empty."""
    try:
        found = json.loads(value)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not found:
        raise wrong
    return found


def names(name: str, value: str) -> tuple[str, ...]:
    """Names with commas between them."""
    found = [short(name, each.strip()) for each in value.split(",")]
    if not all(found):
        raise BadOption(f"option '{name}' must be names with commas between them, not {value!r}")
    for each in found:
        if found.count(each) > 1:
            raise BadOption(f"option '{name}' names '{each}' twice")
    return tuple(found)


def pattern(name: str, value: str) -> str:
    """A regular expression of Python."""
    try:
        re.compile(value)
    except re.error as error:
        raise BadOption(f"option '{name}' is no regular expression: {error}: {value!r}") from None
    return value


def duration_ms(name: str, value: str) -> int:
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise BadOption(f"option '{name}' must be a time such as 500ms, 30s, 15m or 1h, not {value!r}")
    ms = int(found[1]) * _UNITS_MS[found[2]]
    if not 0 < ms <= DURATION_MS_MAX:
        raise BadOption(f"option '{name}' must be between 1 ms and 3650d, not {value!r}")
    return ms


def http_urls(name: str, value: str) -> tuple[str, ...]:
    """URLs of one API on several hosts, with commas between them, each without a slash at its end."""
    found = tuple(each.strip().rstrip("/") for each in value.split(","))
    for each in found:
        try:
            split = urlsplit(each)
            is_url = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            raise BadOption(f"option '{name}' must be a URL such as http://host:15672, not {each!r}")
        if "@" in split.netloc or split.query or split.fragment:
            raise BadOption(
                f"option '{name}' must hold no user, '?' or '#': the user is that of options 'url' or 'username'"
            )
    return found


#: Settings of a store that the query of its URL may have.
_STORE_SETTINGS = ("region", "endpoint", "allow_http")


def store(name: str, value: str) -> StoreUrl:
    """The URL of an object store, or the path of a directory."""
    wrong = BadOption(
        f"option '{name}' must be a store such as s3://bucket/prefix?region=eu-central-1, gs://bucket/prefix, "
        f"file:///directory or /directory, not {value!r}; s3:// may have {', '.join(_STORE_SETTINGS)} behind a '?'"
    )
    directory = value.removeprefix("file://")
    if directory.startswith("/"):
        return StoreUrl("file", directory.rstrip("/"))
    try:
        split = urlsplit(value)
        settings = dict(parse_qsl(split.query, strict_parsing=bool(split.query)))
    except ValueError:
        raise wrong from None
    path = f"{split.netloc}{split.path}".rstrip("/")
    if not split.netloc or "@" in split.netloc or split.fragment:
        raise wrong
    if split.scheme == "gs" and not settings:
        return StoreUrl("gs", path)
    # Spark's own readers say s3a.
    if split.scheme not in ("s3", "s3a") or not settings.keys() <= set(_STORE_SETTINGS):
        raise wrong
    if settings.get("allow_http", "false") not in ("true", "false"):
        raise wrong
    return StoreUrl(
        "s3",
        path,
        settings.get("region", ""),
        settings.get("endpoint", ""),
        settings.get("allow_http") == "true",
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or nothing when nothing is near."""
    by_plain = {_plain(each): each for each in known}
    found = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=0.55)
    return f"; did you mean '{by_plain[found[0]]}'?" if found else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(".", "")
