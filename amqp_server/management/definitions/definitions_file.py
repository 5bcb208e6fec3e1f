"""Reads definitions object by object: a file may have a hundred thousand objects, and each step has to be
short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from amqp_server.management.request.answer import bad_request

Rest = Callable[[], Awaitable[None]]

#: Characters of the first part of the text in which the end of an object is searched: most objects have a few
#: hundred.
PART = 4_096
#: Characters in which line ends are counted in one step.
STEP = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
#: Returns the position where a value ends.
_scan = json.JSONDecoder().raw_decode


class _Malformed(Exception):
    pass


async def decoded(body: bytes, rest: Rest, objects_max: int, object_bytes_max: int) -> dict[str, Any]:
    """Return the body as an object; `rest` is called between two short steps. Raises Refusal."""
    try:
        text = (body or b"{}").decode()
    except UnicodeDecodeError as error:
        raise bad_request(f"failed_to_parse_json: no UTF-8 at byte {error.start}") from None
    reader = _Reader(text, rest, objects_max, object_bytes_max)
    try:
        return await reader.run()
    except (_Malformed, msgspec.MsgspecError, ValueError, RecursionError) as error:
        within = error.pos if isinstance(error, json.JSONDecodeError) else 0
        place = await _place(text, reader.position + within, rest)
        raise bad_request(f"failed_to_parse_json: {place}") from None


async def _place(text: str, at: int, rest: Rest) -> str:
    """Return a position in words, for people with an editor."""
    if at >= len(text):
        return "the text ends too early"
    lines = 1
    for start in range(0, at, STEP):
        await rest()
        lines += text.count("\n", start, min(start + STEP, at))
    before = text.rfind("\n", 0, at)
    return f"line {lines}, column {at - before}"


class _Reader:
    def __init__(self, text: str, rest: Rest, objects_max: int, object_bytes_max: int) -> None:
        self._text = text
        self._rest = rest
        self._objects_max = objects_max
        self._object_bytes_max = object_bytes_max
        self._left = objects_max
        self._at = 0

    @property
    def position(self) -> int:
        """How far the text was read."""
        return self._at

    async def run(self) -> dict[str, Any]:
        """Raises Refusal, _Malformed, msgspec.MsgspecError, ValueError, RecursionError."""
        found: dict[str, Any] = {}
        self._take("{")
        more = not self._has("}")
        while more:
            await self._rest()
            name = self._value()
            if not isinstance(name, str):
                raise _Malformed
            self._take(":")
            found[name] = await self._list() if self._has("[") else self._value()
            more = self._goes_on("}")
        if self._next():
            raise _Malformed
        return found

    async def _list(self) -> list[Any]:
        """Read a list whose opening bracket was read already."""
        found: list[Any] = []
        more = not self._has("]")
        while more:
            await self._rest()
            self._left -= 1
            if self._left < 0:
                raise bad_request(f"more than {self._objects_max} objects")
            found.append(self._value())
            more = self._goes_on("]")
        return found

    def _value(self) -> Any:
        self._next()
        # Decoded as all other bodies are.
        return msgspec.json.decode(self._whole_value().encode())

    def _whole_value(self) -> str:
        """Return the text of the next value, and move behind it. The length of a value is not known before it
        is read. To keep the step short, the end is searched in a part of the text first, then in a longer
        part if the value does not end there.
        """
        start, size = self._at, PART
        while True:
            size = min(size, self._object_bytes_max)
            part = self._text[start : start + size]
            is_rest = start + size >= len(self._text)
            try:
                length = _scan(part)[1]
            except ValueError:
                if is_rest:
                    raise
                length = size
            # A number at the end of the part may continue behind it.
            if length < size or is_rest:
                self._at = start + length
                return part[:length]
            if size == self._object_bytes_max:
                raise bad_request(
                    f"malformed, or an object of more than {size} bytes (http_definition_bytes_max)"
                )
            size *= 8

    def _next(self) -> str:
        """Move to the next character that is no space and return it; return nothing at the end."""
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _has(self, mark: str) -> bool:
        if self._next() != mark:
            return False
        self._at += 1
        return True

    def _take(self, mark: str) -> None:
        if not self._has(mark):
            raise _Malformed

    def _goes_on(self, end: str) -> bool:
        """Return True for a comma after a value, False for the `end` character."""
        if self._has(end):
            return False
        self._take(",")
        return True


__all__ = ["decoded"]
