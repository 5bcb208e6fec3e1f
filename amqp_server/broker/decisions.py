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
        "the seal stands in the log; nothing comes between it and the deletion",
        (_QUORUM, _STREAM),
    ),
    Decision("delete if-empty", HOME, "the home seals the queue until it is deleted", (_CLASSIC,)),
    Decision(
        "delete if-empty",
        LOG,
        "the seal has the ends of the streams, which were asked for behind their leaders",
        (_GROUP,),
    ),
    Decision("delete if-unused", LOG, "consumers are a part of the log's state", (_QUORUM, _GROUP)),
    Decision("delete if-unused", HOME, "the home knows all consumers", (_CLASSIC,)),
    Decision("delete if-unused", COPY, "refused in a cluster, as by RabbitMQ", (_STREAM,)),
    Decision(
        "end of an auto-delete queue", HOME, "the home seals the queue with its last consumer", (_CLASSIC,)
    ),
    Decision("end of a lease (x-expires)", HOME, "the home knows all uses", (_CLASSIC,)),
    Decision(
        "end of a lease (x-expires)",
        LOG,
        "the leader's clock proposes it; the log refuses it if the queue was used meanwhile",
        (_QUORUM,),
    ),
    Decision(
        "counts in declare-ok and delete-ok",
        BARRIER,
        "after everything that was confirmed before; without a majority what the node knows, after "
        "read_index_timeout_ms",
        (_QUORUM, _STREAM, _GROUP),
    ),
    Decision("counts in declare-ok and delete-ok", HOME, "the home is asked each time", (_CLASSIC,)),
    Decision("count in purge-ok", LOG, "the purge stands in the log", (_QUORUM,)),
    Decision("count in purge-ok", HOME, "the home purges", (_CLASSIC,)),
    Decision(
        "count in purge-ok", LOG, "the purge has the ends of the streams, as the delete if-empty", (_GROUP,)
    ),
    Decision("get or get-empty (also of the HTTP API)", LOG, "the get stands in the log", (_QUORUM,)),
    Decision("get or get-empty (also of the HTTP API)", HOME, "the home serves all gets", (_CLASSIC,)),
    Decision(
        "get or get-empty (also of the HTTP API)",
        LEADER,
        "it says that there is no message only after it has caught up with the streams",
        (_GROUP,),
    ),
    Decision("reset of a group without members", LOG, "members are a part of the log's state", (_GROUP,)),
    Decision("max-length: drop or refuse", LOG, "the length is a part of the log's state", (_QUORUM,)),
    Decision("max-length: drop or refuse", HOME, "the home knows the length", (_CLASSIC,)),
    Decision(
        "exclusive consumer, single active consumer",
        LOG,
        "the attach stands in the log; the active consumer is a part of its state",
        (_QUORUM,),
    ),
    Decision("exclusive consumer, single active consumer", HOME, "the home knows all consumers", (_CLASSIC,)),
    Decision("which member reads which partition", LOG, "members are a part of the log's state", (_GROUP,)),
    Decision(
        "duplicate or new message",
        LOG,
        "names that were taken are a part of the log's state",
        (_QUORUM, _STREAM),
    ),
    Decision("duplicate or new message", HOME, "the home knows the names", (_CLASSIC,)),
    Decision("message TTL, delivery limit", LOG, "the log's time, and returns are in the log", (_QUORUM,)),
    Decision("message TTL, delivery limit", HOME, "the home's time, and returns come there", (_CLASSIC,)),
    Decision(
        "retention", LEADER, "it proposes the first offset; all members delete up to the same", (_STREAM,)
    ),
    Decision(
        "where a consumer begins (next, last, a time)",
        COPY,
        "on a member that has applied what was committed before it lost contact; a message or two earlier at most, as "
        "by RabbitMQ",
        (_STREAM,),
    ),
    Decision("range of offsets of a passive declare", BARRIER, "as the counts", (_STREAM,)),
    Decision(
        "new members, leader",
        LEADER,
        "a change of members is an entry of the log, one at a time",
        (_QUORUM, _STREAM, _GROUP),
    ),
    Decision("settings by policies", TOPOLOGY, "policies match everywhere alike"),
    Decision("settings by policies take effect", LOG, "configure stands in the log", (_QUORUM,)),
    Decision(
        "declare, delete, bind; limit of queues of a virtual host",
        TOPOLOGY,
        "two nodes cannot declare the same name, or the last allowed queue",
    ),
    Decision(
        "refusals: no queue (404), other arguments (406), locked (405)",
        COPY,
        "a refusal is looked at again once the node has caught up with the topology",
    ),
    Decision(
        "routes of a publish",
        COPY,
        "changes are answered when all nodes in reach have them; a node that stood still routes as it did before",
    ),
    Decision(
        "permissions, limits of connections and channels",
        COPY,
        "the same; nodes tell each other their counts, so a limit may be passed by the connections of a moment",
    ),
)


def decisions_of(type_name: str) -> list[Decision]:
    """Return the decisions about queues of this type."""
    return [each for each in DECISIONS if type_name in each.types]


assert all(name in QUEUE_TYPES for each in DECISIONS for name in each.types)
