"""Publishes of one read that are the same but for their bodies and their attributes, and come in turn.

Messages of several priorities mostly alternate. So the next publish is compared, as a whole, with the one
that came next the last time, which costs as much as if all were alike.
"""

from __future__ import annotations

from quorum_queue.machine.run import Attributes


class Alternation:
    """Known publishes, and which of them follows which."""

    __slots__ = ("_attributes", "_follows", "_last", "_numbers", "_places", "_templates", "_wholes")

    def __init__(self) -> None:
        #: Frames of the publishes up to their bodies, with their numbers, and the same by number.
        self._numbers: dict[bytes, int] = {}
        self._wholes: list[bytes] = []
        #: The same without the method frame.
        self._templates: list[bytes] = []
        self._attributes: list[Attributes] = []
        #: Places of the attributes in the table of the segment.
        self._places: list[int] = []
        #: By number, the number of the one that came next the last time, -1 for none.
        self._follows: list[int] = []
        #: The number of the last message.
        self._last = -1

    # Of the last message:

    @property
    def template(self) -> bytes:
        return self._templates[self._last]

    @property
    def attributes(self) -> Attributes:
        return self._attributes[self._last]

    @property
    def place(self) -> int:
        return self._places[self._last]

    def note(self, key: bytes, template: bytes, attributes: Attributes, place: int) -> None:
        """A message was taken that has these frames up to its body, and these attributes."""
        whole = key + template
        number = self._numbers.get(whole, -1)
        if number < 0:
            number = self._numbers[whole] = len(self._wholes)
            self._wholes.append(whole)
            self._templates.append(template)
            self._attributes.append(attributes)
            self._places.append(place)
            self._follows.append(-1)
        if self._last >= 0:
            self._follows[self._last] = number
        self._last = number

    def take(
        self,
        data: bytes,
        pos: int,
        end: int,
        key_bytes: int,
        stride: int,
        contents: list[bytes],
        kinds: bytearray,
    ) -> int:
        """Take known publishes, each with `stride` bytes of content frames. Put these into `contents`, and
        the places of their attributes into `kinds`. Return the offset behind the last one.
        """
        wholes, places, follows, numbers = self._wholes, self._places, self._follows, self._numbers
        last, size, whole_bytes = self._last, len(wholes[0]), key_bytes + stride
        while True:
            number = follows[last]
            if number < 0 or not data.startswith(wholes[number], pos):
                number = numbers.get(data[pos : pos + size], -1)
                if number < 0:
                    break
            after = pos + whole_bytes
            if after > end or data[after - 1] != 0xCE:
                break
            contents.append(data[pos + key_bytes : after])
            kinds.append(places[number])
            follows[last] = number
            last = number
            pos = after
        self._last = last
        return pos


__all__ = ["Alternation"]
