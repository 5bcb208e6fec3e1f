"""python -m tests.reliability.short_of_descriptors FILE EVERY OPTIONS…: mqd in which calls that open
something fail with EMFILE while FILE exists: each EVERY-th call of each place of the code.
"""

from __future__ import annotations

import builtins
import errno
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

#: What opens a descriptor.
PLACES: tuple[tuple[Any, str], ...] = (
    (os, "open"),
    (builtins, "open"),
    (os, "listdir"),
    (os, "scandir"),
    (os, "pipe2"),
    (socket, "socketpair"),
    (socket.socket, "accept"),
    (socket.socket, "__init__"),
    (socket.socket, "dup"),
)


def plant(file: str, every: int) -> None:
    stat, calls = os.stat, Counter[tuple[str, int]]()

    def planted() -> bool:
        try:
            stat(file)
        except FileNotFoundError:
            return False
        return True

    def wrapped(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            # A socket object for a descriptor that there is already opens nothing.
            opens = name != "__init__" or (named.get("fileno") is None and len(arguments) < 5)
            if opens and planted():
                caller = sys._getframe(1)
                place = caller.f_code.co_filename, caller.f_lineno
                calls[place] += 1
                if calls[place] % every == 0:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return original(*arguments, **named)

        return call

    for owner, name in PLACES:
        setattr(owner, name, wrapped(getattr(owner, name), name))


if __name__ == "__main__":
    from amqp_server.app import main

    plant(sys.argv[1], int(sys.argv[2]))
    sys.argv = ["mqd", *sys.argv[3:]]
    sys.exit(main())
