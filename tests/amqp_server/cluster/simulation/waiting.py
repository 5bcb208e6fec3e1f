"""What the node's coroutines await instead of Trio: by the clock of their node, they go on when the test
looks at them.

Stands for the module `trio` where a coroutine of the broker is run by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any

#: The task that runs now; its scopes use its clock.
_running: list[Task] = []


class Cancelled(BaseException):
    """A scope's time is over."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


class Event:
    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    async def wait(self) -> None:
        while not self._set:
            await _Pause()


class Scope:
    def __init__(self, seconds: float) -> None:
        self._task = _running[-1]
        self.deadline_ms = self._task.clock() + round(seconds * 1000)

    def __enter__(self) -> Scope:
        self._task.scopes.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._task.scopes.remove(self)
        return isinstance(error, Cancelled) and error.scope is self


def move_on_after(seconds: float) -> Scope:
    return Scope(seconds)


async def sleep(seconds: float) -> None:
    clock = _running[-1].clock
    until = clock() + max(1, round(seconds * 1000))
    while clock() < until:
        await _Pause()


class Task:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], clock: Callable[[], int]) -> None:
        self._coroutine = coroutine
        self.clock = clock
        self.scopes: list[Scope] = []
        self.done = False
        self.error: Exception | None = None

    def go_on(self) -> bool:
        """Run until the coroutine waits; return whether it is done. The task keeps an error."""
        if self.done:
            return True
        late = next((scope for scope in self.scopes if scope.deadline_ms <= self.clock()), None)
        _running.append(self)
        try:
            if late is None:
                self._coroutine.send(None)
            else:
                self._coroutine.throw(Cancelled(late))
        except StopIteration:
            self.done = True
        except Exception as error:  # noqa: BLE001 - for whoever began it
            self.done, self.error = True, error
        finally:
            _running.pop()
        return self.done

    def end(self) -> None:
        """Nobody runs the task any more."""
        if self.done:
            return
        self.done = True
        self._coroutine.close()
