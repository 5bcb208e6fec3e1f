"""Producers of transactions: a later start of one shuts out the earlier ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.model.spec.channels import Channel
from tests.model.spec.promises import PRECONDITION_FAILED

NAME, EPOCH = "x-producer", "x-producer-epoch"


@dataclass(eq=False)
class Epochs:
    """The highest epoch of each producer."""

    #: That surely nobody commits below, and that perhaps nobody does.
    sure: dict[str, int] = field(default_factory=dict)
    perhaps: dict[str, int] = field(default_factory=dict)
    #: Of those the ones that are on the disk.
    stored: dict[str, int] = field(default_factory=dict)

    def begun(self, name: str, epoch: int, *, sure: bool) -> None:
        for known in (self.sure, self.perhaps) if sure else (self.perhaps,):
            known[name] = max(epoch, known.get(name, -1))

    def committed(self, channel: Channel) -> None:
        if channel.producer is not None:
            name, epoch = channel.producer
            self.begun(name, epoch, sure=True)
            self.stored[name] = max(epoch, self.stored.get(name, -1))

    def vouched(self) -> None:
        self.stored |= self.sure

    def crash(self) -> None:
        """What was not on the disk may be forgotten, or not."""
        self.sure = dict(self.stored)

    def shut_out(self, channel: Channel) -> tuple[bool, bool]:
        """Whether a later start of the channel's producer has surely, or perhaps, shut it out."""
        if channel.producer is None:
            return False, False
        name, epoch = channel.producer
        return epoch < self.sure.get(name, -1), epoch < self.perhaps.get(name, -1)

    def publish(self, channel: Channel, headers: dict[str, Any], *, first: bool, prompt: bool) -> bool:
        """A message comes on a channel in transaction mode; the first of a transaction may name the producer.
        Return False if the channel is closed.
        """
        if self._is_closed(channel, prompt=prompt):
            return False
        if not first or EPOCH not in headers:
            return True
        name, epoch, before = headers.get(NAME, ""), headers[EPOCH], channel.producer
        if not name or epoch < 0 or (before is not None and (before[0] != name or epoch < before[1])):
            channel.closing.add(PRECONDITION_FAILED)
            return False
        channel.producer = name, epoch
        if self._is_closed(channel, prompt=prompt):
            return False
        self.begun(name, epoch, sure=prompt)
        return True

    def _is_closed(self, channel: Channel, *, prompt: bool) -> bool:
        surely, perhaps = self.shut_out(channel)
        if surely and prompt:
            channel.closing.add(PRECONDITION_FAILED)
        elif perhaps:
            # Another node may not have heard of it, but hears of it before it commits.
            channel.may_close.add(PRECONDITION_FAILED)
        return surely and prompt
