"""Health checks and other small paths of the management API that tools ask."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from conformance_tests.api import Api
from conformance_tests.broker import Broker
from conformance_tests.conftest import Alarm, Connect, Name
from conformance_tests.expect import eventually

OK = [
    "alarms",
    "local-alarms",
    "virtual-hosts",
    "certificate-expiration/1/weeks",
    "node-is-mirror-sync-critical",
    "node-is-quorum-critical",
    "protocol-listener/amqp",
    "protocol-listener/amqp091",
    "protocol-listener/http",
]


@pytest.mark.parametrize("check", OK)
def test_all_is_well(api: Api, check: str) -> None:
    answer = api.ask("GET", f"health/checks/{check}")
    assert (answer.status, answer.json["status"]) == (200, "ok")


def test_an_alarm_is_told_with_its_node(api: Api, memory_alarm: Alarm) -> None:
    node = api.ask("GET", "overview").json["node"]
    memory_alarm(True)
    told = [{"node": node, "resource": "memory"}]
    answer = eventually(lambda: _failed(api, "health/checks/alarms"))
    assert answer == {
        "status": "failed",
        "reason": "There are alarms in effect in the cluster",
        "alarms": told,
    }
    answer = _failed(api, "health/checks/local-alarms")
    assert answer == {"status": "failed", "reason": "There are alarms in effect on the node", "alarms": told}
    for path in ("healthchecks/node", f"healthchecks/node/{quote(node, safe='')}"):
        assert _failed(api, path)["reason"].startswith("resource alarm(s) in effect:")
    memory_alarm(False)
    eventually(lambda: api.ask("GET", "health/checks/alarms").status == 200)


def _failed(api: Api, path: str) -> Any:
    answer = api.ask("GET", path)
    return answer.json if answer.status == 503 else None


def test_logins_are_counted(api: Api) -> None:
    node = quote(api.ask("GET", "overview").json["node"], safe="")

    def failed() -> int:
        rows = api.ask("GET", f"auth/attempts/{node}").json
        (row,) = (row for row in rows if row["protocol"] == "http")
        assert row["auth_attempts"] == row["auth_attempts_failed"] + row["auth_attempts_succeeded"]
        return int(row["auth_attempts_failed"])

    before = failed()
    assert api.ask("GET", "whoami", login="guest:wrong").status == 401
    eventually(lambda: failed() == before + 1)
    assert api.ask("GET", f"auth/attempts/{node}/source").json == []
    assert api.ask("GET", "auth/attempts/nosuch").status == 404
    assert api.ask("DELETE", f"auth/attempts/{node}").status == 204


def test_a_listener_that_there_is_and_one_that_there_is_not(api: Api, broker: Broker) -> None:
    port = urlsplit(broker.url).port
    answer = api.ask("GET", f"health/checks/port-listener/{port}")
    assert (answer.status, answer.json) == (200, {"status": "ok", "port": port})
    answer = api.ask("GET", "health/checks/port-listener/1")
    assert answer.status == 503
    told: dict[str, Any] = answer.json
    assert port in told.pop("ports")
    assert told == {"status": "failed", "reason": "No active listener", "missing": 1}
    answer = api.ask("GET", "health/checks/protocol-listener/mqtt")
    assert (answer.status, answer.json["missing"]) == (503, "mqtt")
    assert "amqp" in answer.json["protocols"]


def test_listeners_of_several_protocols(api: Api) -> None:
    assert api.ask("GET", "health/checks/protocol-listener/amqp,http").status == 200
    answer = api.ask("GET", "health/checks/protocol-listener/amqp,mqtt")
    assert (answer.status, answer.json["missing"]) == (503, ["mqtt"])
    assert {"amqp", "http"} <= set(answer.json["protocols"])


def test_units_of_time(api: Api) -> None:
    assert api.ask("GET", "health/checks/certificate-expiration/x/weeks").status == 400
    assert api.ask("GET", "health/checks/certificate-expiration/1/moons").status == 400


def test_aliveness(api: Api) -> None:
    assert api.ask("GET", "aliveness-test/%2F").json == {"status": "ok"}
    assert api.ask("GET", "aliveness-test/no-such-vhost").status == 404
    assert api.ask("GET", "queues/%2F/aliveness-test").status == 200
    assert api.ask("DELETE", "queues/%2F/aliveness-test").status == 204


def test_what_pages_ask(api: Api) -> None:
    expected = {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}
    assert api.ask("GET", "auth", login="nobody:nobody").json == expected
    assert isinstance(api.ask("GET", "extensions").json, list)
    flags = {flag["name"]: flag["state"] for flag in api.ask("GET", "feature-flags").json}
    assert flags["quorum_queue"] == "enabled"
    assert api.ask("PUT", "feature-flags/quorum_queue/enable", {"name": "quorum_queue"}).status == 204
    answer = api.ask("PUT", "feature-flags/nosuch/enable", {"name": "nosuch"})
    assert (answer.status, answer.json["reason"]) == (400, "unsupported")
    assert api.ask("POST", "rebalance/queues", {}).status == 204
    assert api.ask("DELETE", "reset").status == 204


def test_the_name_of_the_cluster(api: Api, connect: Connect) -> None:
    before = api.ask("GET", "cluster-name").json["name"]
    answer = api.ask("PUT", "cluster-name", {"x": "n"})
    assert (answer.status, answer.json["reason"]) == (400, "[{key_missing,name}]")
    assert api.ask("PUT", "cluster-name", {"name": "lilliput"}).status == 204
    try:
        assert api.ask("GET", "cluster-name").json == {"name": "lilliput"}
        assert api.ask("GET", "overview").json["cluster_name"] == "lilliput"
        assert {"name": "cluster_name", "value": "lilliput"} in api.ask("GET", "global-parameters").json
        told: Any = connect()
        assert told._impl.server_properties["cluster_name"] == "lilliput"
    finally:
        assert api.ask("PUT", "cluster-name", {"name": before}).status == 204


def test_bulk_delete(api: Api, name: Name) -> None:
    users = [name("user") for _ in range(3)]
    for user in users:
        assert api.ask("PUT", f"users/{user}", {"password": "x", "tags": ""}).status == 201
    assert api.ask("POST", "users/bulk-delete", {"users": users[:2]}).status == 204
    assert [api.ask("GET", f"users/{user}").status for user in users] == [404, 404, 200]
    assert api.ask("DELETE", f"users/{users[2]}").status == 204
