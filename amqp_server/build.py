"""How this mqd was built: `compiled` by mypyc, or `pure` Python. See docs/compiled.md."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Literal

from amqp_server import turn

#: One module is enough to find out: a wheel has either all compiled modules or none.
BUILD: Literal["compiled", "pure"] = (
    "compiled" if str(turn.__file__).endswith(tuple(EXTENSION_SUFFIXES)) else "pure"
)
