"""The delivered marks of a node, which outlive its process. See persistence.delivered_marks."""

from __future__ import annotations

from collections.abc import Iterable


class Marks:
    def __init__(self) -> None:
        self._slots: dict[int, int] = {}

    def mark(self, slot: int, seq: int) -> None:
        if slot not in self._slots:
            raise AssertionError(f"slot {slot} is nobody's")
        self._slots[slot] = seq

    def get(self, slot: int) -> int:
        return self._slots.get(slot, -1)

    def allocate(self) -> int:
        """Return the lowest free slot. So marks left behind in a slot meet its next owner."""
        slot = 0
        while slot in self._slots:
            slot += 1
        self._slots[slot] = -1
        return slot

    def free(self, slot: int) -> None:
        self._slots.pop(slot, None)

    def retain(self, slots: Iterable[int]) -> None:
        self._slots = {slot: self.get(slot) for slot in slots}
