"""Bodies of the entries that were applied or read last, cached for delivery up to a bound in bytes."""

from __future__ import annotations

from collections import OrderedDict

from quorum_queue.machine.bodies import Bodies


class BodyCache:
    """Shared by all groups of the node; the entries used last stay."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[int, int], tuple[Bodies, int]] = OrderedDict()
        #: The indexes of each group that has any.
        self._indexes: dict[int, dict[int, None]] = {}
        self.bytes = 0

    def put(self, group: int, index: int, bodies: Bodies, size: int) -> None:
        if size > self._bytes_max // 4:
            return
        key = (group, index)
        if key in self._entries:
            return
        self._entries[key] = bodies, size
        self._indexes.setdefault(group, {})[index] = None
        self.bytes += size
        while self.bytes > self._bytes_max:
            self.drop(*next(iter(self._entries)))

    def get(self, group: int, index: int) -> Bodies | None:
        found = self._entries.get((group, index))
        return None if found is None else found[0]

    def drop(self, group: int, index: int) -> None:
        """The entry is no longer needed."""
        found = self._entries.pop((group, index), None)
        if found is not None:
            self.bytes -= found[1]
            indexes = self._indexes[group]
            del indexes[index]
            if not indexes:
                del self._indexes[group]

    def drop_range(self, group: int, entries: range) -> None:
        """These entries are no longer needed."""
        if len(entries) == 1:
            self.drop(group, entries.start)
            return
        held = self._indexes.get(group)
        if held is None:
            return
        if len(held) < len(entries):
            for index in [index for index in held if index in entries]:
                self.drop(group, index)
        else:
            for index in entries:
                self.drop(group, index)

    def drop_group(self, group: int) -> None:
        """No entry of the group is needed any more. Touches no other group's entries."""
        for index in list(self._indexes.get(group, ())):
            self.drop(group, index)
