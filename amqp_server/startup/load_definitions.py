"""Imports the definitions in a file when a node starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from amqp_server.management.parts import ManagedParts

logger = logging.getLogger("mqd.definitions")

#: Time to wait until a new cluster has the version that knows policies. A cluster during an upgrade does not
#: get it in this time.
VERSION_WAIT_S = 10.0


class DefinitionsError(Exception):
    """The file has no valid definitions, or they contradict existing objects; the text has the reason."""


async def load_definitions(parts: ManagedParts, path: str) -> None:
    """Import the definitions in a file. Raises DefinitionsError."""
    from amqp_server.management.definitions.definitions_file import decoded
    from amqp_server.management.definitions.importing import Import
    from amqp_server.management.request.answer import Refusal

    try:
        body = await trio.to_thread.run_sync(Path(path).read_bytes)
    except OSError as error:
        raise DefinitionsError(f"load_definitions: {path}: {error.strerror}") from None
    with trio.move_on_after(VERSION_WAIT_S):
        while not parts.broker.topology.takes_parameters:
            await trio.sleep(0.05)
    if not parts.broker.topology.takes_parameters:
        logger.error("%s is not imported until all nodes of the cluster run this version of mqd", path)
        return
    importing = Import(parts, trio.lowlevel.checkpoint)
    try:
        rest, config = trio.lowlevel.checkpoint, parts.config
        told = await decoded(body, rest, config.http_definitions_max, config.http_definition_bytes_max)
        await importing.run(told)
    except Refusal as refusal:
        raise DefinitionsError(f"load_definitions: {path}: {refusal}") from None
    await parts.commits.barrier()
    for skipped in importing.skipped:
        place = f" in vhost '{skipped['vhost']}'" if skipped["vhost"] else ""
        what = f"{skipped['section']} '{skipped['name']}'{place}"
        logger.warning("%s: %s was not imported: %s", path, what, skipped["reason"])
    logger.info("the definitions in %s were imported", path)
