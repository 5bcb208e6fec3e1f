"""Committing on the spot, where there is no loop yet: first set-up, tools, tests."""

from persistence.ports import Store


def flush(store: Store) -> None:
    """Make all that was submitted durable, in this thread, and call the waiting done()s."""
    pending = store.pending
    while pending.open or pending.open.done or len(pending.layers) > 1 or store.has_erasures():
        layer = pending.take()
        transaction = store.transaction(layer)
        try:
            for _ in transaction.apply():
                pass
            transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        transaction.finish()
        pending.remove(layer)
        for done in layer.done:
            done()
