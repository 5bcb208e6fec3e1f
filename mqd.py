"""By this name programs import what mqd offers them: `import mqd.testing`."""

import sys

from amqp_server import testing

#: Python takes what has a path for a package. This one has no files of its own.
__path__: list[str] = []

sys.modules[f"{__name__}.testing"] = testing

__all__ = ["testing"]
