"""Shared empty containers for idle queues: a dictionary takes 80 bytes, a deque 760, and there may be a
hundred thousand queues with a dozen of each.

Nothing is ever added to these: code that adds something first creates its own container. Most queues never
need most of these containers.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NoReturn


class _Dictionary(dict[Any, Any]):
    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this dictionary is shared, and stays empty")

    def __reduce__(self) -> str:
        return "NO_DICT"

    __setitem__ = setdefault = update = __ior__ = _refuse


class _List(list[Any]):
    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("this list is shared, and stays empty")

    def __reduce__(self) -> str:
        return "NO_LIST"

    __iadd__ = append = extend = insert = _refuse


class _Deque(deque[Any]):
    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("this deque is shared, and stays empty")

    def __reduce__(self) -> str:  # type: ignore[override]
        return "NO_DEQUE"

    __iadd__ = append = appendleft = extend = extendleft = insert = _refuse


NO_DICT: Final[dict[Any, Any]] = _Dictionary()
NO_LIST: Final[list[Any]] = _List()
NO_DEQUE: Final[deque[Any]] = _Deque()

__all__ = ["NO_DEQUE", "NO_DICT", "NO_LIST"]
