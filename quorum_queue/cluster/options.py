"""Limits and times of replication. The server fills them from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from persistence.replica_logs.record import ENTRY_BYTES_MAX

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, kw_only=True)
class ReplicationOptions:
    #: The batches of one turn make one entry; a larger turn makes several of about this size.
    entry_bytes: int = MIB
    #: A message that takes more with its frames is refused, because no disk would take its entry; the second
    #: limit holds while a node may run a version before versions.LARGE_ENTRIES.
    message_bytes_max: int = ENTRY_BYTES_MAX - MIB
    earlier_message_bytes_max: int = 63 * MIB
    #: Least time between two small entries of one queue whose messages come one by one, ms.
    gather_ms: int = 2
    #: Commands of one host in one turn are cut into batches of about this size.
    batch_bytes: int = 256 * KIB
    #: A snapshot is due after so many entries or bytes that came after the last one…
    snapshot_entries: int = 2048
    snapshot_bytes: int = 4 * MIB
    #: …and not before so many times the snapshot's own size, so that a long queue does not spend its time on
    #: snapshots.
    snapshot_growth: int = 4
    #: Entries kept for a follower that still lacks them; a follower that lags further gets a snapshot.
    log_bytes_max: int = 64 * MIB
    #: Size of one piece of a snapshot, and of one answer with entries.
    piece_bytes: int = MIB
    #: Pieces of snapshots on their way to one peer.
    transfer_bytes_max: int = 8 * MIB
    #: With more unsent bytes to a peer, its appends wait.
    unsent_bytes_max: int = 512 * MIB
    #: A snapshot transfer without progress for so long is given up, and begins again, ms.
    transfer_timeout_ms: int = 10_000
    #: Time for a disconnected node to come back before its consumers count as gone, ms.
    node_down_ms: int = 1_500
    #: A write that takes longer makes this node give up leadership, ms.
    disk_stall_ms: int = 2_000
    #: It may take longer for large entries, at this rate.
    disk_bytes_per_s: int = 16 * MIB
    #: A change of the topology is refused when it has not been applied for so long, ms.
    change_timeout_ms: int = 10_000
    #: A node that cannot find out in time how far a log is committed answers with what it knows, ms.
    read_index_timeout_ms: int = 2_000
    #: Time between two checks for leaders that should move, ms.
    rebalance_ms: int = 2_000
    #: Leaders moved at one check.
    rebalance_groups: int = 50
    #: Leaders move away from this node when it has not reached a live member for so long, ms: all nodes
    #: notice within this time that a node is dead.
    reach_ms: int = 500
    #: A restored link counts as reliable when it has lasted for so long, ms.
    steady_ms: int = 10_000
    #: Groups handed over at one tick because another node reaches more of their voters.
    handover_groups: int = 100
    #: Messages for groups that this node does not know yet, and likewise commands for such queues, bytes.
    unopened_bytes_max: int = 4 * MIB
    #: Bodies of entries kept in memory for delivery, bytes.
    bodies_bytes: int = 64 * MIB
    #: A node asks another peer for an entry that has not come within this time, ms.
    lost_entry_retry_ms: int = 1_000
    #: Time between two log lines about an entry that is lost on all members, ms.
    lost_entry_report_ms: int = 60_000
    #: Time for a member to begin being filled, before another one may, ms.
    lost_entry_refill_ms: int = 5_000
    #: About so many bytes of bodies are requested from the disk at once.
    read_ahead_bytes: int = MIB
