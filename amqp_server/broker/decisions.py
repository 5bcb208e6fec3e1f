"""Where the broker takes its decisions about a queue, and why the answer is right there.

One row for each decision and the types of queues that it concerns. `mqctl explain queue` shows the rows of a
queue's type, and docs/adr/0040 has them all; a test holds both together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from amqp_server.broker.declared.queue_types import CLASSIC, GROUP, QUEUE_TYPES, QUORUM, STREAM

# Places of decisions.
#: While the queue's log is applied: the same on all members, after everything that came before.
LOG: Final = "queue's log"
#: On the one node that has the queue: everything about it comes there.
HOME: Final = "home node"
#: On the leader, which puts the result into the log.
LEADER: Final = "leader"
#: On the asked node, once it has what the leader had committed when it was asked. The leader answers when a
#: majority knows of no later one.
BARRIER: Final = "asked node, behind the leader"
#: While the topology's log is applied, on all nodes.
TOPOLOGY: Final = "topology's log"
#: On the asked node, by its copy.
COPY: Final = "asked node"

_CLASSIC, _QUORUM, _STREAM, _GROUP = CLASSIC.name, QUORUM.name, STREAM.name, GROUP.name
_ALL: Final = (_CLASSIC, _QUORUM, _STREAM, _GROUP)


class Decision(NamedTuple):
    what: str
    place: str
    why: str
    types: tuple[str, ...] = _ALL


DECISIONS: Final = (
    Decision(
        "delete if-empty",
        LOG,
        "the seal is a log entry; nothing can come between it and the deletion, which waits until clients of all "
        "members in reach have what they took before",
        (_QUORUM, _STREAM),
    ),
    Decision("delete if-empty", HOME, "the home node seals the queue until the deletion", (_CLASSIC,)),
    Decision(
        "delete if-empty",
        LOG,
        "the seal contains the end offsets of the streams, as their leaders reported them",
        (_GROUP,),
    ),
    Decision("delete if-unused", LOG, "the log's state contains the consumers", (_QUORUM, _GROUP)),
    Decision("delete if-unused", HOME, "the home node knows all consumers", (_CLASSIC,)),
    Decision("delete if-unused", COPY, "refused in a cluster, as in RabbitMQ", (_STREAM,)),
    Decision(
        "end of an auto-delete queue",
        HOME,
        "the home node seals the queue when its last consumer ends",
        (_CLASSIC,),
    ),
    Decision("end of a lease (x-expires)", HOME, "the home node knows all uses", (_CLASSIC,)),
    Decision(
        "end of a lease (x-expires)",
        LOG,
        "the leader proposes it by its clock; the log refuses it if the queue was used in the meantime",
        (_QUORUM,),
    ),
    Decision(
        "counts in declare-ok and delete-ok",
        BARRIER,
        "they include everything that was confirmed before; without a majority, they are what the node knows after "
        "read_index_timeout_ms",
        (_QUORUM, _STREAM, _GROUP),
    ),
    Decision("counts in declare-ok and delete-ok", HOME, "the home node answers each time", (_CLASSIC,)),
    Decision("count in purge-ok", LOG, "the purge is a log entry", (_QUORUM,)),
    Decision("count in purge-ok", HOME, "the home purges", (_CLASSIC,)),
    Decision(
        "count in purge-ok",
        LOG,
        "the purge contains the end offsets of the streams, as for delete if-empty",
        (_GROUP,),
    ),
    Decision("get or get-empty (also of the HTTP API)", LOG, "the get is a log entry", (_QUORUM,)),
    Decision("get or get-empty (also of the HTTP API)", HOME, "the home node serves all gets", (_CLASSIC,)),
    Decision(
        "get or get-empty (also of the HTTP API)",
        LEADER,
        "it answers get-empty only after it has caught up with the streams",
        (_GROUP,),
    ),
    Decision("reset of a group without members", LOG, "the log's state contains the members", (_GROUP,)),
    Decision("max-length: drop or refuse", LOG, "the log's state contains the length", (_QUORUM,)),
    Decision("max-length: drop or refuse", HOME, "the home node knows the length", (_CLASSIC,)),
    Decision(
        "exclusive consumer, single active consumer",
        LOG,
        "the attach is a log entry; the log's state contains the active consumer",
        (_QUORUM,),
    ),
    Decision(
        "exclusive consumer, single active consumer", HOME, "the home node knows all consumers", (_CLASSIC,)
    ),
    Decision("which member reads which partition", LOG, "the log's state contains the members", (_GROUP,)),
    Decision(
        "duplicate or new message",
        LOG,
        "the log's state contains the names of the messages that were taken",
        (_QUORUM, _STREAM),
    ),
    Decision("duplicate or new message", HOME, "the home node knows the names", (_CLASSIC,)),
    Decision(
        "what became of a message",
        BARRIER,
        "the record is in the log's state; without a majority there is no answer",
        (_QUORUM,),
    ),
    Decision("what became of a message", HOME, "the home node keeps the record", (_CLASSIC,)),
    Decision("message TTL, delivery limit", LOG, "time and returns come from the log", (_QUORUM,)),
    Decision("message TTL, delivery limit", HOME, "time and returns come from the home node", (_CLASSIC,)),
    Decision(
        "retention", LEADER, "it proposes the first offset; all members delete up to the same one", (_STREAM,)
    ),
    Decision(
        "where a consumer begins (next, last, a time)",
        BARRIER,
        "behind everything that was confirmed before; without a majority the consumer is refused",
        (_STREAM,),
    ),
    Decision("range of offsets of a passive declare", BARRIER, "as the counts", (_STREAM,)),
    Decision(
        "new members, leader",
        LEADER,
        "a change of members is an entry of the log, one at a time",
        (_QUORUM, _STREAM, _GROUP),
    ),
    Decision(
        "commit of a transaction over one queue",
        LOG,
        "its part takes effect with its last entry",
        (_QUORUM, _STREAM, _GROUP),
    ),
    Decision(
        "commit of a transaction over one queue",
        HOME,
        "its part takes effect when it is complete",
        (_CLASSIC,),
    ),
    Decision(
        "commit of a transaction over several queues",
        TOPOLOGY,
        "each queue has its part in its log, or on disk, before that; the first decision stands",
    ),
    Decision("which epoch of a producer may commit", TOPOLOGY, "it is compared where the commit is decided"),
    Decision(
        "which consumer has a message group",
        LOG,
        "it follows from what consumers hold, which is in the log's state",
        (_QUORUM,),
    ),
    Decision(
        "which consumer has a message group", HOME, "the home node knows what consumers hold", (_CLASSIC,)
    ),
    Decision("cancel of a waiting message", LOG, "the log's state contains the message or not", (_QUORUM,)),
    Decision("cancel of a waiting message", HOME, "the home node has the message or not", (_CLASSIC,)),
    Decision(
        "consumer timeout",
        COPY,
        "the node of the client measures it, and gives back as the client would: earlier acks count",
    ),
    Decision(
        "end of the consumers of an unreachable node",
        LEADER,
        "the entry names one start of that node, and comes behind all of its commands that the leader has",
        (_QUORUM,),
    ),
    Decision(
        "end of the consumers of an unreachable node",
        HOME,
        "its link to that node has ended; nothing of it comes later",
        (_CLASSIC,),
    ),
    Decision(
        "which old segments are in an object store",
        LOG,
        "the log's state contains the manifest; a member deletes no segment that is not in it",
        (_STREAM,),
    ),
    Decision("settings by policies", TOPOLOGY, "all nodes match policies in the same way"),
    Decision("settings by policies take effect", LOG, "the change of settings is a log entry", (_QUORUM,)),
    Decision(
        "pause or resume a queue", TOPOLOGY, "all nodes know and show what is paused", (_QUORUM, _CLASSIC)
    ),
    Decision("a pause takes effect", LOG, "the change of settings is a log entry", (_QUORUM,)),
    Decision("a pause takes effect", HOME, "the home node has the settings", (_CLASSIC,)),
    Decision(
        "declare, delete, bind; limit of queues of a virtual host",
        TOPOLOGY,
        "two nodes cannot both declare the same name, or the last allowed queue",
    ),
    Decision(
        "protection from deletion",
        BARRIER,
        "the node first learns what operators were told on other nodes; an end without a delete goes by its copy",
    ),
    Decision(
        "refusals: no queue (404), other arguments (406), locked (405)",
        COPY,
        "a refusal is checked again when the node has caught up with the topology",
    ),
    Decision(
        "routes of a publish",
        COPY,
        "a change is answered when all reachable nodes have it; a node that was paused routes as before",
    ),
    Decision(
        "permissions, limits of connections and channels",
        COPY,
        "as for routes; nodes report their counts to each other, so connections of the same moment may exceed a limit",
    ),
)


def decisions_of(type_name: str) -> list[Decision]:
    """Return the decisions about queues of this type."""
    return [each for each in DECISIONS if type_name in each.types]


assert all(name in QUEUE_TYPES for each in DECISIONS for name in each.types)
