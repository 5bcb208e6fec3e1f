"""The connector as a zip, given to Spark with `--py-files`.

Spark puts the zip on the path of its workers, but not on that of the process that runs a streaming source
beside the driver. So the data source is pickled with the way to its own zip, which lies on the same machine.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def zip_of(file: str) -> str | None:
    """Return the zip that a module was imported from; None if it was a directory."""
    for parent in Path(file).parents:
        if parent.is_file():
            return os.fspath(parent)
    return None


def _load(zip_path: str, module: str, name: str, options: Mapping[str, str]) -> Any:
    import importlib
    import sys

    if zip_path not in sys.path:
        sys.path.insert(1, zip_path)
    return getattr(importlib.import_module(module), name)(options)


#: As `_load`, but pickled as a whole and not by its name, because its module is not there yet.
load: Callable[[str, str, str, Mapping[str, str]], Any] = types.FunctionType(_load.__code__, {}, "load")
load.__module__ = "__main__"

__all__ = ["load", "zip_of"]
