"""The program `mqd`, from its first moment on: nothing else is imported before Ctrl-C means something."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    # What is imported stays: a look at it on the way finds no garbage, and takes a twentieth of the time. The node
    # turns the collector on when it serves.
    gc.disable()
    # Until the node waits for signals, Ctrl-C ends the process at once, as SIGTERM does. As an exception it
    # would be lost where Python ignores exceptions, in callbacks of its imports above all, and the node would
    # serve all the same.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A terminal that goes away does not end a broker, nor does a reload that comes before the node can do it.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from amqp_server import app

    app.main()


if __name__ == "__main__":
    main()
