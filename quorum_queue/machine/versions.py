"""Versions of the queue machine: how a replicated queue applies entries, and what its snapshots hold.

All members of a group must apply each entry in the same way. So every change in `Machine.apply`, in the
commands that an entry may hold, or in a snapshot, belongs to a new version, and takes effect only from that
version on. A queue begins with the first one. Its leader raises it by an entry, once the topology says that
all nodes of the cluster can apply the new one (see amqp_server.cluster.maintenance). A queue that is on one
node only begins with the newest.

    1   mqd 0.1
    2   mqd 0.2: dead letters that come again are taken once (("enqueue_letter", …)), and messages whose
        bodies no member can read leave the queue (("lose", …)); a message that comes back when its time is up
        expires

    3   mqd 0.2: nothing new for quorum queues; clusters have streams

    4   mqd 0.2: a queue that loses its dead-letter exchange drops the dead letters that it holds; clusters
        have policies

    5   mqd 0.2: nothing new for quorum queues; clusters have super streams, consumer groups, and streams that
        drop duplicates and are compressed and compacted

    6   mqd 0.2: nothing new for quorum queues; publishers choose when they are confirmed (x-confirm), for
        which nodes send each other frames of their own; streams of a cluster keep offsets by name

    7   mqd 0.2: a queue is sealed at a place in its log before it is deleted on a condition (("seal", …)),
        and nodes ask the leader how far the log is committed before they answer with counts; snapshots have
        columns, in parts; very many messages that expire, or that a lower limit drops, leave the queue in
        several entries, and so do names of messages that are too old to be remembered; a queue that refuses
        messages above its limit in bytes refuses the one that does not fit into it; entries may have more
        than 64 MiB; limits of queues, exchanges and bindings hold when the topology applies a declaration;
        streams keep the offsets of their names, and refuse more names, until an operator deletes some; queues
        keep parts of transactions that are not decided, and the topology has the decisions; queues record
        what became of messages; quorum queues have strict priorities, count failed deliveries apart from
        returns, and may let returned messages wait; publishers choose when a message is delivered first

    8   mqd 0.2: operators pause queues, protect them from deletion, and move and purge messages out of their
        middle; queues have message groups

    9   mqd 0.2: messages expire at their time, wherever they stand in a queue; operators and clients take
        messages out of a queue that wait; who returns a message may say how long it waits

    10  mqd 0.2: messages with different priorities or times to live come as one run; a run of ready messages
        may have gaps

    11  mqd 0.2: nothing new for quorum queues; streams of a cluster keep in their state what an object store
        has of them

    12  mqd 0.2: dead letters that a queue holds count in its limits; a queue that has some, or of which
        messages are just being moved, is not empty

A node that meets a newer version than its own in an entry or a snapshot can't know what the others do: the
queue stops there, with a line that says so.
"""

from __future__ import annotations

from collections.abc import Collection

FIRST = 1
#: Dead letters are identified by their source queue and their position there.
LETTERS = 2
#: Messages may leave the queue because their bodies are lost on all members.
LOSSES = 2
#: A message that was returned expires at its time, and not after it.
RETURNED = 2
#: Held dead letters go when the queue is configured without a dead-letter exchange.
UNHELD = 4

#: The topology keeps the nodes on which a queue was declared.
FOUNDERS = 2
#: The topology takes no batch of a removed node.
REMOVED = 2
#: The topology keeps the last administrator.
ADMINISTRATOR = 2
#: The cluster has streams, and nodes ask each other for their messages.
STREAMS = 3
#: The topology has parameters, policies among them.
PARAMETERS = 4
#: The cluster has consumer groups.
GROUPS = 5
#: One operation of the topology makes very many queues, whose ids are no indexes of the log. Messages come to
#: streams of a cluster with their names, and compressed. Members of a stream compact: what one has sent to
#: another one may stand for more offsets than it has messages.
SUPER_STREAMS = 5
#: Nodes know the levels of confirmation, and the frames for them.
CONFIRM_LEVELS = 6
#: Streams of a cluster keep offsets by name.
STREAM_NAMES = 6
#: The topology checks limits of queues, exchanges and bindings when it applies a declaration.
ROOM = 7
#: Nodes take entries of more than 64 MiB.
LARGE_ENTRIES = 7
#: A message that does not fit into max-length-bytes is refused.
FITTING = 7

#: A queue that deduplicates forgets names that are too old in parts.
EXPIRY_IN_PARTS = 7

#: The log decides whether a queue, a stream or a consumer group may be deleted (see seal),
#: and nodes know the frames of barriers.
SEALS = 7
#: Snapshots have columns; attributes of queued messages have no time to live, which their deadline says.
COLUMNS = 7
#: A batch drops so many messages at most, beyond those that it brings.
DROPS = 7

#: Queues keep a record of messages, entries carry their ids, and nodes ask each other for them.
RECORD = 7
#: Quorum queues have strict priorities, 0 to 31, and returned messages come first, in the order of their
#: return.
PRIORITIES = 7
#: Quorum queues count failed deliveries and returns apart, and batches may say which is which
#: (("fail", …)).
FAILURES = 7
#: Returned messages may wait before they are delivered again.
RETRIES = 7
#: New messages may wait before they are delivered first, and entries say for how long.
DELAYS = 7

#: Streams refuse more names than they may keep, and forget a name only when told to.
NAMES_REFUSED = 7

#: Queues take parts of transactions (see parts), and the topology has the decisions.
TRANSACTIONS = 7

#: Queues may be paused. They and virtual hosts may be protected from deletion, for which snapshots of the
#: topology have fields.
PAUSES = PROTECTION = 8
#: Heads of messages have their group, and queues hand messages out by groups.
MESSAGE_GROUPS = 8
#: Gets may be for the message at a position.
PICKS = 8
#: Gets may be for a message that waits.
CANCELS = 9

#: Messages expire behind others, too.
EXACT_EXPIRY = 9

#: A return may say how long its messages wait, whatever the queue's settings are (("retry", …)).
RETRY_WAITS = 9

#: Entries have runs of messages with different attributes, and snapshots have ready runs with gaps.
KINDS = 10

#: Streams of a cluster have a manifest of what is in an object store.
STREAM_REMOTES = 11

#: Dead letters that a queue holds count in limits at which it refuses messages, and for a seal. For a seal,
#: messages that were picked count, too.
HELD_COUNT = 12
#: Streams may be declared with a table.
STREAM_TABLES = 12

NEWEST = 12

#: Features that a node announces in the handshake of a link for the versions that it can apply, beyond the
#: first.
FEATURES = tuple(f"machine/{version}" for version in range(FIRST + 1, NEWEST + 1))


def newest_of(features: Collection[str]) -> int:
    """Return the newest version that a node with these features can apply, as
    far as this one knows versions.
    """
    version = FIRST
    while version < NEWEST and f"machine/{version + 1}" in features:
        version += 1
    return version


__all__ = [
    "ADMINISTRATOR",
    "CANCELS",
    "COLUMNS",
    "CONFIRM_LEVELS",
    "DROPS",
    "EXACT_EXPIRY",
    "FAILURES",
    "FEATURES",
    "FIRST",
    "FITTING",
    "FOUNDERS",
    "GROUPS",
    "HELD_COUNT",
    "KINDS",
    "LARGE_ENTRIES",
    "LETTERS",
    "LOSSES",
    "NAMES_REFUSED",
    "NEWEST",
    "PARAMETERS",
    "PAUSES",
    "PICKS",
    "RECORD",
    "PRIORITIES",
    "PROTECTION",
    "REMOVED",
    "RETRIES",
    "RETRY_WAITS",
    "RETURNED",
    "ROOM",
    "SEALS",
    "STREAMS",
    "STREAM_NAMES",
    "STREAM_REMOTES",
    "STREAM_TABLES",
    "SUPER_STREAMS",
    "TRANSACTIONS",
    "UNHELD",
    "newest_of",
]
