"""What a client may be answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OK = 0
ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED = 403, 404, 405, 406
COMMAND_INVALID, RESOURCE_ERROR, NOT_ALLOWED, NOT_IMPLEMENTED = 503, 506, 530, 540
#: These close the connection, the others a channel.
HARD = frozenset({320, 501, 502, 503, 504, 505, 530, 540, 541})


class Broken(AssertionError):
    """The broker did what it promises not to do."""


def nothing(_: Any) -> None:
    pass


@dataclass
class Promise:
    """The codes that an answer may have, OK among them, and what follows from success. `effect` gets the
    answer and raises Broken if it can't be.
    """

    codes: frozenset[int]
    effect: Callable[[Any], None] = nothing
    #: What follows from a refusal.
    refusal: Callable[[Any], None] = nothing


def success(effect: Callable[[Any], None] = nothing) -> Promise:
    return Promise(frozenset({OK}), effect)


def refused(*codes: int) -> Promise:
    return Promise(frozenset(codes))
