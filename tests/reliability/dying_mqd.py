"""A pure mqd that kills itself at one step of a large transaction: `python -m tests.reliability.dying_mqd
OPTIONS`, as `mqd OPTIONS`.

The variable MQD_TEST_DIES has the step, and the how many-th one of its kind since tx.commit it is: "handed
over 5" (some parts are with their queues), "not stored 1" (before LMDB commits), "stored 1". A large
transaction is never in the log in front of LMDB.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "MQD_TEST_DIES"
_ROOT = str(Path(__file__).parents[2])
PROGRAM = (
    *(sys.executable, "-P", "-c"),
    f"import sys; sys.path.append({_ROOT!r}); from {__name__} import main; raise SystemExit(main())",
)


def main() -> int | None:
    from amqp_server.build import BUILD

    assert BUILD == "pure", "methods of a compiled class can't be replaced"
    kind, _, number = os.environ[VARIABLE].rpartition(" ")
    _install(kind, int(number))
    from amqp_server.app import main as run

    return run()


def _install(wanted: str, number: int) -> None:
    from amqp_server.channel.transactions.tx import LargeEnd, Transaction
    from persistence.transaction import LmdbTransaction

    left, armed = number, False

    def step(kind: str) -> None:
        nonlocal left
        if armed and kind == wanted:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    close: Any = Transaction.close
    end_parts: Any = LargeEnd._end_parts
    commit: Any = LmdbTransaction.commit

    def closes(self: Any) -> None:
        nonlocal armed
        armed = armed or self.is_large
        close(self)

    def ends(self: Any) -> Iterator[None]:
        for _ in end_parts(self):
            step("handed over")
            yield

    def commits(self: Any) -> None:
        step("not stored")
        commit(self)
        step("stored")

    places: Any = (Transaction, LargeEnd, LmdbTransaction)
    places[0].close, places[1]._end_parts, places[2].commit = closes, ends, commits


if __name__ == "__main__":
    raise SystemExit(main())
