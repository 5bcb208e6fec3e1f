"""The program `mqd`: it sets signal handlers before it imports anything else."""

from __future__ import annotations

import gc
import signal

from amqp_server.startup import start_time  # noqa: F401


def main(*, for_tests: bool = False) -> None:
    # Imported objects stay: garbage collection during the imports finds nothing, and takes a twentieth of
    # their time. The node turns the collector on when it serves.
    gc.disable()
    # Until the node waits for signals, Ctrl-C ends the process at once, as SIGTERM does. A KeyboardInterrupt
    # could be lost where Python ignores exceptions, mainly in callbacks of its imports, and the node would
    # serve all the same.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # SIGHUP must not end the broker, neither from a closing terminal nor as a reload request that comes too
    # early.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from amqp_server import app

    if for_tests:
        app.main_for_tests()
    app.main()


if __name__ == "__main__":
    main()
