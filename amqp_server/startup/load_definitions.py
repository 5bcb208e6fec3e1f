"""Imports the definitions in a file when a node starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from amqp_server.management.objects.managed_broker import ManagedBroker

logger = logging.getLogger("mqd.definitions")

#: Time to wait until a new cluster has the version that knows policies. A cluster during an upgrade does not
#: get it in this time.
VERSION_WAIT_S = 10.0


class DefinitionsError(Exception):
    """The file has no valid definitions, or they contradict existing objects; the text has the reason."""


async def load_definitions(broker: ManagedBroker, path: str) -> None:
    """Import the definitions in a file. Raises DefinitionsError."""
    from amqp_server.management.definitions.definitions_file import decoded
    from amqp_server.management.definitions.importing import Import
    from amqp_server.management.request.answer import Refusal

    try:
        body = await trio.to_thread.run_sync(Path(path).read_bytes)
    except OSError as error:
        raise DefinitionsError(f"load_definitions: {path}: {error.strerror}") from None
    with trio.move_on_after(VERSION_WAIT_S):
        while not broker.takes_parameters:
            await trio.sleep(0.05)
    if not broker.takes_parameters:
        logger.error("%s is not imported until all nodes of the cluster run this version of mqd", path)
        return
    importing = Import(broker, trio.lowlevel.checkpoint)
    try:
        rest, most = trio.lowlevel.checkpoint, broker.definitions_max
        await importing.run(await decoded(body, rest, most, broker.definition_bytes_max))
    except Refusal as refusal:
        raise DefinitionsError(f"load_definitions: {path}: {refusal}") from None
    await broker.node.synced()
    for skipped in importing.skipped:
        place = f" in vhost '{skipped['vhost']}'" if skipped["vhost"] else ""
        what = f"{skipped['section']} '{skipped['name']}'{place}"
        logger.warning("%s: %s was not imported: %s", path, what, skipped["reason"])
    logger.info("the definitions in %s were imported", path)
