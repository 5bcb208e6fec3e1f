"""Members that lost their disk and came back under their old name.

Such a member may have given votes and acknowledged entries that it forgot. If it voted again in a term in
which it has voted, two could lead; if it voted for a log without what it acknowledged, committed entries
could be lost. So it says in each answer that it is amnesiac, with the number of its new disk, and neither
votes nor counts. The leader removes its vote by an entry of the log (once that is committed, a member without
the entry cannot win with a vote from before the loss), and tells it the entry's index. As soon as the member
has that entry, its log is that of a new learner of the same name, as good as any, and it remembers from then
on. It becomes a voter again by a further entry, which the host proposes, as for all learners.

The entry needs a majority of the remaining voters: of three, both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.raft.messages import Message
from quorum_queue.raft.progress import SNAPSHOT, Progress

if TYPE_CHECKING:
    from quorum_queue.raft.leading import Leadership


def memory_changed(message: Message, peer: Progress) -> None:
    """An answer has another number of a memory than before."""
    if not message.amnesiac and message.index < peer.floor:
        return  # The answer is from before the loss.
    peer.amnesiac = message.amnesiac
    peer.floor = -1
    if message.amnesiac:
        peer.match = 0
        peer.next = min(peer.next, message.index + 1)
        peer.probe()


def proceed(leadership: Leadership, name: str, peer: Progress) -> None:
    """Take the next step for an amnesiac, if possible now."""
    raft = leadership.raft
    members = raft.members
    if peer.floor >= 0 or raft.commit < leadership.first_index or raft.members_index > raft.commit:
        return
    if name not in members.voters:
        peer.floor = raft.members_index
        if peer.state != SNAPSHOT:
            peer.probe()
        leadership.due = True
    elif not leadership.transferring and leadership.could_commit(members.demoted(name)):
        leadership.propose_members(members.demoted(name))
