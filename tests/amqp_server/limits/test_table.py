"""Each limit on a count holds in each way to make what it counts: on one node, and at each of three.

The table is that of `limits.LIMITS` and `ways.WAYS`. A limit or a way that it lacks fails a test here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.topology import limits as operator_limits
from amqp_server.config import Config
from amqp_server.management.definitions.importing import SECTIONS
from amqp_server.management.serving.endpoints import ENDPOINTS
from amqp_server.testing.broker import Broker, start
from amqp_server.testing.cluster import start_cluster
from tests.amqp_server.limits.limits import BYTES_OPTIONS, LIMITS, OPTIONS, Limit
from tests.amqp_server.limits.scene import (
    AT,
    BINDING,
    CHANNEL,
    CONNECTION,
    EXCHANGE,
    LIMITED,
    PARAMETER,
    PARTITION,
    QUEUE,
    USER,
    VHOST,
    VHOST_NAME,
    Refused,
    Scene,
    prepare,
)
from tests.amqp_server.limits.ways import DEFINITIONS, WAYS
from tests.reliability.node import run_once

COMMON = {"shovel_reconnect_min_ms": 20}


@pytest.fixture(scope="module")
def one() -> Iterator[Broker]:
    with start(**COMMON, **OPTIONS) as broker:
        prepare(broker)
        yield broker


@pytest.fixture(scope="module")
def small() -> Iterator[Broker]:
    with start(**COMMON, **BYTES_OPTIONS) as broker:
        prepare(broker)
        yield broker


@pytest.fixture(scope="module")
def three() -> Iterator[Sequence[Broker]]:
    with start_cluster(3, **COMMON, **OPTIONS) as cluster:
        prepare(cluster["n1"])
        yield list(cluster)


def ways_to(limit: Limit) -> list[str]:
    return [name for name, way in WAYS.items() if way.makes & limit.kinds and name not in limit.beside]


def hold(limit: Limit, brokers: Sequence[Broker]) -> None:
    """Each way is refused at the limit, at each node, and makes nothing. Below the limits it is taken: see
    `test_what_a_way_makes`.
    """
    wrong: list[str] = []
    with Scene(brokers[0]) as filler:
        shared = limit.reach(filler, limit)
        full = filler.counts(*limit.kinds)
        for name in ways_to(limit):
            for broker in brokers:
                if shared is not None and not shared.is_open:
                    shared = limit.reach(filler, limit)
                with Scene(broker, shared) as scene:
                    try:
                        WAYS[name].act(scene)
                    except Refused as refused:
                        if not limit.refuses(refused):
                            wrong.append(f"{name} at {broker.name} is refused with {refused}")
                    else:
                        wrong.append(f"{name} at {broker.name} is not refused")
            more = filler.counts(*limit.kinds)
            if any(more[kind] > full[kind] for kind in full):
                wrong.append(f"{name} made something: {more}, not {full}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in LIMITS if name not in BYTES_OPTIONS])
def test_a_limit_holds_in_each_way(one: Broker, name: str) -> None:
    hold(LIMITS[name], [one])


@pytest.mark.parametrize("name", BYTES_OPTIONS)
def test_a_limit_on_bytes_holds_in_each_way(small: Broker, name: str) -> None:
    hold(LIMITS[name], [small])


#: The others take CI too long.
SHORT = ("queues_max", f"{operator_limits.QUEUES} of a vhost", f"{operator_limits.CHANNELS} of a user")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.long)
        for name, limit in LIMITS.items()
        if limit.of_cluster and name not in BYTES_OPTIONS
    ],
)
def test_a_limit_holds_at_each_of_three_nodes(three: Sequence[Broker], name: str) -> None:
    hold(LIMITS[name], three)


#: Integers of the configuration that end in `_max` and say nothing about how many there may be of something
#: that a client or an operator makes and that stays until it is taken away.
OTHER_LIMITS = {
    "sizes of one thing": """
        alternates_max cluster_answer_bytes_max cluster_frame_bytes_max http_body_bytes_max
        http_definition_bytes_max http_json_bytes_max log_commit_bytes_max message_bytes_max
        auth_http_answer_bytes_max oauth_answer_bytes_max oauth_token_bytes_max parameter_bytes_max
        permission_pattern_bytes_max proxy_header_bytes_max routing_steps_max shovel_uris_max
        topic_hashes_max table_depth_max handshake_frame_bytes_max http_definitions_max
        """,
    "of the moment: it waits, or is refused and tried again": """
        auth_http_logins_per_address_max auth_http_requests_max auth_http_waiting_max blocked_input_bytes_max
        cluster_queue_bytes_max cluster_strangers_max event_waiting_max half_open_max
        half_open_per_address_max http_connections_max http_memory_bytes_max http_pipelined_max
        http_requests_max http_requests_per_user_max log_lines_max log_queue_lines_max message_status_queues_max
        metrics_objects_max password_checks_max password_checks_waiting_max queue_restart_tries_max
        worker_restarts_max
        shovel_bytes_max shovel_prefetch_max shovels_bytes_max stream_read_bytes_max suspended_input_bytes_max
        transfer_bytes_max tx_bytes_max tx_parts_max unfinished_bytes_max unsent_bytes_max group_gaps_max
        log_bytes_max
        """,
    "the oldest goes": """
        auth_http_cache_entries_max deduplication_producers_max http_sessions_bytes_max http_sessions_max
        http_sessions_per_user_max login_memory_entries_max login_sources_max memo_bytes_max memo_entries_max
        statistics_bytes_max tx_producers_max
        """,
}


def test_no_limit_is_missing() -> None:
    others = {name for names in OTHER_LIMITS.values() for name in names.split()}
    every = {
        each.name for each in fields(Config) if each.name.endswith("_max") and isinstance(each.default, int)
    }
    assert others < every
    options = every - others
    operators = {f"{name} of a vhost" for name in operator_limits.OF_VHOSTS}
    operators |= {f"{name} of a user" for name in operator_limits.OF_USERS}
    assert set(LIMITS) == options | operators
    assert set(BYTES_OPTIONS) | set(OPTIONS) == options


#: Requests that make nothing that a limit counts.
OTHER_PATHS = """
    POST /api/cluster/nodes POST /api/cluster/nodes/{node}/grow POST /api/cluster/nodes/{node}/shrink
    POST /api/cluster/queues/{vhost}/{name}/accept-loss POST /api/cluster/rebalance
    POST /api/cluster/topology/accept-loss POST /api/failed-queues/{vhost}/{name}/retry
    POST /api/groups/{vhost}/{name}/reset POST /api/nodes/{node}/stop POST /api/queues/{vhost}/{name}/actions
    POST /api/queues/{vhost}/{name}/cancel POST /api/queues/{vhost}/{name}/copy
    POST /api/queues/{vhost}/{name}/deletion/protection POST /api/queues/{vhost}/{name}/import
    POST /api/queues/{vhost}/{name}/move POST /api/queues/{vhost}/{name}/purge
    POST /api/queues/{vhost}/{name}/read POST /api/queues/{vhost}/{name}/redrive
    POST /api/rebalance/queues POST /api/users/bulk-delete POST /api/users/{user}/authenticate
    POST /api/vhosts/{vhost}/deletion/protection POST /api/vhosts/{vhost}/start/{node}
    PUT /api/cluster/queues/{vhost}/{name}/leader PUT /api/feature-flags/{name}/enable
    PUT /api/nodes/{node}/disk-free-limit PUT /api/nodes/{node}/drain PUT /api/nodes/{node}/log-level
    PUT /api/nodes/{node}/memory-limit PUT /api/nodes/{node}/revive PUT /api/permissions/{vhost}/{user}
    PUT /api/queues/{vhost}/{name}/pause PUT /api/queues/{vhost}/{name}/resume
    PUT /api/topic-permissions/{vhost}/{user}
    """
#: Operations of the topology that make something, and the kind. Whatever else is new must come here, or among
#: those that make nothing.
OPERATIONS = {
    "PutVhost": VHOST,
    "PutUser": USER,
    "PutParameter": PARAMETER,
    "DeclareQueue": QUEUE,
    "DeclareExchange": EXCHANGE,
    "DeclareSuperStream": PARTITION,
    "Bind": BINDING,
}
OTHER_OPERATIONS = """
    ClearParameter ClearPermission ClearTopicPermission DeleteExchange DeleteQueue DeleteUser DeleteVhost NodeDown
    PauseQueue ProtectQueue ReplaceHash SetMembers SetPermission SetTopicPermission Unbind
    """
#: Methods of clients that make something.
METHODS = {"connection.open", "channel.open", "exchange.declare", "exchange.bind"}
METHODS |= {"queue.declare", "queue.bind", "basic.consume"}


def test_no_way_is_missing() -> None:
    paths = {f"{each.method} {each.path}" for each in ENDPOINTS if each.method in ("PUT", "POST")}
    known = {path for way in WAYS.values() for path in way.paths}
    assert known | set(re.findall(r"\w+ /\S+", OTHER_PATHS)) == paths
    sections = {section for section, *_ in DEFINITIONS.values()}
    assert sections | {"permissions", "topic_permissions"} == set(SECTIONS)
    operations = {each.__name__ for each in get_args(Operation)}
    assert set(OPERATIONS) | set(OTHER_OPERATIONS.split()) == operations
    assert {kind for way in WAYS.values() for kind in way.makes} >= set(OPERATIONS.values())
    for method in METHODS:
        assert any(name.startswith(method) for name in WAYS), method


#: The import is the same, so these stand for the others.
AT_START = {f"{operator_limits.QUEUES} of a vhost": "stream", "users_max": "user", "shovels_max": "shovel"}


def test_definitions_at_the_start_of_a_node(tmp_path: Path) -> None:
    """They are imported as a request imports them, but before any client comes: the node does not start."""
    file = tmp_path / "definitions.json"
    vhost_limits = DEFINITIONS["limit of a vhost"][1] | {"value": {"max-queues": 1}}
    for name, definition in AT_START.items():
        section, item, *_ = DEFINITIONS[definition]
        told: dict[str, list[dict[str, Any]]] = {
            "vhosts": [{"name": VHOST_NAME}],
            "queues": [DEFINITIONS["queue"][1] | {"name": "q"}],
        }
        if name not in OPTIONS:
            told["parameters"] = [vhost_limits]
        key = "routing_key" if section == "bindings" else "name"
        told[section] = told.get(section, []) + [item, item | {key: "another"}]
        file.write_text(json.dumps(told))
        # Of vhosts and queues there is one before.
        option = () if name not in OPTIONS else (f"--{name.replace('_', '-')}", "1")
        place = ("--data-dir", str(tmp_path / name), "--amqp", "127.0.0.1:0", "--http", "")
        code, _, errors = run_once(["--load-definitions", str(file), *place, *option])
        assert code == 1
        assert re.search(LIMITS[name].text.replace("12", "1"), errors.splitlines()[-1]), errors


def test_requests_take_no_places_of_clients(one: Broker) -> None:
    """What an operator does, and what an import makes, works while clients have all channels."""
    with Scene(one) as filler:
        for name in ("channels_max", "connections_max"):
            LIMITS[name].reach(filler, LIMITS[name])
        for way in WAYS.values():
            if way.paths and CHANNEL not in way.makes:
                with Scene(one) as scene:
                    way.act(scene)


def test_a_limit_that_was_taken_away_is_no_parameter(one: Broker) -> None:
    for path in (f"vhost-limits/{AT}/max-queues", f"user-limits/{LIMITED}/max-channels"):
        one.api("PUT", f"/api/{path}", {"value": 1000})
        one.api("DELETE", f"/api/{path}")
        # Neither is one that was not there.
        one.api("DELETE", f"/api/{path}")
        with Scene(one) as filler:
            LIMITS["parameters_max"].reach(filler, LIMITS["parameters_max"])
            with pytest.raises(Refused, match="parameters_max"):
                filler.api("PUT", f"/api/{path}", {"value": 1000})


@pytest.mark.parametrize("name", WAYS)
def test_what_a_way_makes(one: Broker, name: str) -> None:
    with Scene(one) as looking:
        before = looking.counts()
        with Scene(one) as scene:
            WAYS[name].act(scene)
            after = looking.counts()
    made = {kind for kind in after if after[kind] > before[kind]}
    # Each way needs a connection for itself.
    own = {CONNECTION, CHANNEL}
    assert made - own == WAYS[name].makes - own
    assert WAYS[name].makes <= made
