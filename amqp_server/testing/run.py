"""The process of a broker that tests have started: `python amqp_server/testing/run.py DIRECTORY ARGUMENTS`.

It is run as a file: as a module it would first import the whole package `amqp_server.testing`. It is `mqd`
with two differences that only a crash of the machine or a thief would notice: it syncs nothing, and its
password hashes cost nothing.

It ends with the process that started it, however that process ends: the kernel closes the pipe that is our
stdin. The stored data is not needed then, so DIRECTORY is deleted, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading


def _end_with_parent(directory: str) -> None:
    while os.read(0, 4096):
        pass
    shutil.rmtree(directory, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    directory = sys.argv.pop(1)
    threading.Thread(target=_end_with_parent, args=(directory,), daemon=True).start()
    from amqp_server.main import main as mqd

    mqd(for_tests=True)


if __name__ == "__main__":
    main()
