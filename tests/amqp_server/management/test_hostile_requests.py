"""Names that could become HTTP headers, and numbers that are too large."""

from __future__ import annotations

import logging
from itertools import product
from typing import Any
from urllib.parse import quote, unquote

import pytest

from amqp_server.logs import FORMATTERS

from .conftest import Connect

pytestmark = pytest.mark.trio

#: Names that would end a header, and begin the next one.
ENDS = [
    "\r\nx-injected: 1",
    "\nx-injected: 1",
    "\rx-injected: 1",
    "\r\n\r\n<script>",
    "\u560d\u560ax-injected: 1",
]
HUGE = [str(10**30), "9" * 5000, str(2**63), "-" + "9" * 30]
LISTS = [
    *("queues", "queues/%2F", "exchanges", "bindings", "exchanges/%2F/amq.topic/bindings/source", "groups"),
    *("connections", "channels", "consumers"),
    *("users", "users/admin/permissions", "vhosts", "policies", "parameters"),
]


def quoted(name: str) -> str:
    return quote(name, safe="")


def require_whole(answer: Any) -> None:
    assert "x-injected" not in answer.headers
    for _, value in answer.headers.raw:
        assert not {b"\r", b"\n", b"\0"} & {bytes([each]) for each in value}


@pytest.mark.parametrize("end", ENDS)
async def test_a_name_is_no_header(connect: Connect, end: str) -> None:
    client = connect("admin")
    # As with RabbitMQ, names of queues and exchanges lose their line ends. Routing keys keep theirs.
    name = f"q{end}".replace("\r", "").replace("\n", "")
    for kind in ("queues", "exchanges"):
        require_whole(await client.put(f"{kind}/%2F/{quoted('q' + end)}", json={}))
        got = await client.get(f"{kind}/%2F/{quoted(name)}")
        assert got.json()["name"] == name
        require_whole(got)
    binding = {"routing_key": f"key{end}", "arguments": {"x": end}}
    bindings = f"bindings/%2F/e/amq.topic/q/{quoted(name)}"
    bound = await client.post(bindings, json=binding)
    assert bound.status_code == 201
    require_whole(bound)
    # The location header names the binding.
    destination, key = bound.headers["location"].split("/")
    assert unquote(destination) == name
    found = await client.get(f"{bindings}/{key}")
    assert (found.json()["routing_key"], found.json()["arguments"]) == (f"key{end}", {"x": end})
    assert (await client.delete(f"{bindings}/{key}")).status_code == 204


@pytest.mark.parametrize("end", ENDS)
async def test_what_is_not_there_is_no_header(connect: Connect, end: str) -> None:
    client = connect("admin")
    for path in ("nowhere", "queues/%2F/", "users/", "nodes/", "overview", "whoami"):
        for more in ("", "/", "?columns=", "?page="):
            require_whole(await client.get(f"{path}{more}{quoted(end)}"))
            require_whole(await client.get(f"{path}{more}{quoted(end)}/"))
    require_whole(await client.request("OPTIONS", f"queues/%2F/{quoted(end)}"))
    require_whole(await connect(f"nobody{end}").get("whoami"))
    for place in ("http://broker/", "http://broker/page/"):
        require_whole(await client.get(f"{place}{quoted(end)}"))


@pytest.mark.parametrize("end", ENDS)
async def test_a_name_is_no_line_of_the_log(
    connect: Connect, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    with caplog.at_level(logging.INFO):
        assert (await connect("admin").put(f"queues/%2F/{quoted('q' + end)}", json={})).status_code == 201
        assert (await connect(f"nobody{end}").get("whoami")).status_code == 401
    assert caplog.records
    for record, formatter in product(caplog.records, FORMATTERS.values()):
        assert formatter().format(record).isprintable()


@pytest.mark.parametrize("number", HUGE, ids=["10^30", "of 5,000 digits", "2^63", "negative"])
async def test_pages_that_nobody_has(connect: Connect, number: str) -> None:
    client = connect("admin")
    for path in LISTS:
        for query in (f"page={number}", f"page=1&page_size={number}", f"page={number}&page_size={number}"):
            answer = await client.get(f"{path}?{query}")
            # Or the address is too long to be parsed.
            assert answer.status_code in (400, 414), (path, query)
            assert len(answer.content) < 500


@pytest.mark.parametrize("number", HUGE, ids=["10^30", "of 5,000 digits", "2^63", "negative"])
async def test_charts_that_nobody_can_draw(connect: Connect, number: str) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    for path in ("overview", "queues", "queues/%2F/q", "nodes", "nodes/n1"):
        for name in ("lengths", "msg_rates", "node_stats"):
            for query in (f"{name}_age={number}&{name}_incr=5", f"{name}_age=60&{name}_incr={number}"):
                answer = await client.get(f"{path}?{query}")
                assert answer.status_code in (200, 400), (path, query, answer.text)
