"""The object stores of this node's streams, compared with what the streams know of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import trio

from amqp_server.management.request.answer import Refusal
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_workers
from amqp_server.streams.local_host import StreamHost
from persistence.streams.remote.checking import Compared, compare, identity_of
from persistence.streams.remote.objects import Found, Objects, Unavailable
from persistence.streams.remote.table import table_directory

Row = dict[str, Any]


def _hosts(call: Call) -> list[StreamHost]:
    """Return the streams of which this node has a manifest."""
    return [
        queue.host
        for queue in call.broker.all_queues()
        if isinstance(queue.host, StreamHost)
        and queue.host.tier is not None
        and queue.host.tier.manifest is not None
    ]


def _all_objects(stores: Iterable[tuple[str, Objects]]) -> dict[str, list[Found]]:
    """Return all objects of all stores. Raises Unavailable. A thread calls it."""
    return {name: list(store.found("")) for name, store in stores}


async def _found(call: Call) -> dict[str, list[Found]]:
    """Raises Refusal."""
    stores = call.parts.remotes.stores
    try:
        return await trio.to_thread.run_sync(
            _all_objects, [(name, stores.objects(name)) for name in stores.names]
        )
    except Unavailable as error:
        raise Refusal(503, "unavailable", str(error)) from None


def _compared(host: StreamHost, found: dict[str, list[Found]]) -> Compared:
    tier = host.tier
    assert tier is not None and tier.manifest is not None
    manifest, (_, table_stop) = tier.manifest, host.table_figures()
    table = table_directory(*host.stream_name)
    return compare(manifest, tier.first_offset or 0, found.get(manifest.remote, ()), table, table_stop or 0)


async def check(call: Call) -> Any:
    """What the stores have: objects without a manifest, and the other way round."""
    # Without the answer of a worker, the objects of its streams would seem to belong to no stream.
    of_workers = (await ask_workers(call)).complete()
    found = await _found(call)
    # The manifests afterwards: what they had before they may have deleted since.
    rows: list[Row] = []
    for told in of_workers:
        rows += told["streams"]
    for host in _hosts(call):
        tier = host.tier
        assert tier is not None and tier.manifest is not None
        manifest = tier.manifest
        compared = _compared(host, found)
        rows.append(
            {
                "vhost": host.queue.vhost.name,
                "name": host.queue.name,
                "remote": manifest.remote,
                "identity": manifest.identity,
                "uploads": host.may_upload,
                "segments": len(manifest.ranges),
                "bytes": manifest.size,
                **compared._asdict(),
            }
        )
    others: list[Row] = []
    known = {row["identity"] for row in rows}
    for name, objects in found.items():
        counts = Counter(identity_of(each.key) for each in objects)
        others += [
            {"remote": name, "identity": identity, "objects": count}
            for identity, count in sorted(counts.items())
            if identity not in known
        ]
    return {"streams": rows, "others": others}


async def delete_orphans(call: Call) -> Any:
    """Delete objects that the manifests of streams that this node uploads will never have."""
    deleted = sum(told["deleted"] for told in (await ask_workers(call)).complete())
    found = await _found(call)
    doomed: list[tuple[Objects, list[str]]] = []
    for host in _hosts(call):
        tier = host.tier
        assert tier is not None and tier.manifest is not None
        if host.may_upload:
            orphans = _compared(host, found).orphans
            doomed.append((call.parts.remotes.stores.objects(tier.manifest.remote), orphans))
    try:
        for store, keys in doomed:
            await trio.to_thread.run_sync(store.delete, keys)
    except Unavailable as error:
        raise Refusal(503, "unavailable", str(error)) from None
    return {"deleted": deleted + sum(len(keys) for _, keys in doomed)}


__all__ = ["check", "delete_orphans"]
