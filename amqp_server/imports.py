"""Imports that take long and are not needed at the start."""

from __future__ import annotations

import importlib

import trio


async def imported(*modules: str) -> None:
    """Import these modules in a thread; the loop serves clients meanwhile."""
    for module in modules:
        await trio.to_thread.run_sync(importlib.import_module, module)
