"""The headers that let a message wait, and how they begin in a table."""

from __future__ import annotations

from typing import Final

DELAY: Final = "x-delay"
DELIVER_AT: Final = "x-deliver-at"
#: The beginnings of the fields. The same bytes may also be part of a value.
DELAY_FIELD: Final = bytes((len(DELAY),)) + DELAY.encode()
DELIVER_AT_FIELD: Final = bytes((len(DELIVER_AT),)) + DELIVER_AT.encode()
