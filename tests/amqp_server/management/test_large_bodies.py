"""The API reads large bodies of requests in short steps, and refuses those that would fill the memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from amqp_server.management.definitions import definitions_file
from amqp_server.management.definitions.definitions_file import decoded
from amqp_server.management.parts import ManagedParts
from amqp_server.management.request import answer
from amqp_server.management.request.answer import Refusal
from amqp_server.management.serving import http

from .conftest import Connect

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=3), some, max_size=4),
    max_leaves=20,
)


class Rests:
    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


def read(
    body: bytes, objects_max: int = 1_000, object_bytes_max: int = 1_000_000
) -> tuple[dict[str, Any], int]:
    """Return what was read, and how often other tasks had a chance meanwhile."""
    rests = Rests()
    reading = decoded(body, rests, objects_max, object_bytes_max)
    try:
        reading.send(None)
    except StopIteration as done:
        return done.value, rests.count
    raise AssertionError("it waits")


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.sampled_from([None, 0, 1]))
def test_definitions_are_read_as_all_other_bodies(told: dict[str, Any], indent: int | None) -> None:
    body = json.dumps(told, indent=indent, ensure_ascii=False).encode()
    assert read(body)[0] == msgspec.json.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"[]",
            b"1",
            b"{",
            b'{"a"',
            b'{"a":',
            b'{"a":1',
            b'{"a":1,',
            b'{"a":1,}',
            b'{"a":[1,]}',
            b'{"a":[1',
            b'{"a":[,1]}',
        ),
        *(
            b'{"a":[1 2]}',
            b'{"a":1} x',
            b"{1:2}",
            b'{"a":NaN}',
            b'{"a":[Infinity]}',
            b'{"a":["\xff"]}',
            b'{"a":"\\ud800"}',
        ),
        *(
            b'{"a":' + b"[" * 100_000,
            b'{"a":[' + b'{"b":' * 100_000,
            b'{"a":' + b"9" * 10_000 + b"}",
            b"\xef\xbb\xbf{}",
        ),
    ],
)
def test_what_is_no_object_of_json_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal):
        read(body)


def test_others_go_on_between_two_objects() -> None:
    told, rests = read(json.dumps({"queues": [{"name": str(n)} for n in range(500)]}).encode())
    assert len(told["queues"]) == 500 and rests >= 500
    assert read(b"")[0] == read(b" { } ")[0] == {}


def test_there_may_be_so_many_objects() -> None:
    body = b'{"queues":[{},{},{}],"exchanges":[{},{}]}'
    assert len(read(body, 5)[0]["queues"]) == 3
    with pytest.raises(Refusal, match="more than 4 objects"):
        read(body, 4)


@pytest.mark.parametrize("value", ['"é"', "12345", "-1.5e3", "true", '{"a":[1]}', "[[]]", '"x\\""'])
@pytest.mark.parametrize("space", range(8))
def test_values_are_whole_where_the_part_that_is_looked_at_ends(
    value: str, space: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions_file, "PART", 4)
    body = f'{{"a":{" " * space}{value},"b":[{value},{value}]}}'.encode()
    assert read(body, object_bytes_max=32)[0] == msgspec.json.decode(body)


@pytest.mark.parametrize(
    "large", ['{"a":[' + "1," * 5_000 + "1]}", '"' + "x" * 10_000 + '"', "1" * 4_200, "{" * 9_000]
)
def test_an_object_of_definitions_may_be_so_large(large: str) -> None:
    for body in (f'{{"policies":[{{}},{large}]}}', f'{{"x":{large}}}'):
        with pytest.raises(Refusal, match="http_definition_bytes_max"):
            read(body.encode(), object_bytes_max=4_100)
    small = '{"a":[' + "1," * 2_000 + "1]}"
    assert (
        read(f'{{"policies":[{small}]}}'.encode(), object_bytes_max=4_100)[0]["policies"][0]["a"]
        == [1] * 2_001
    )


@pytest.mark.trio
async def test_only_texts_may_be_large(connect: Connect, parts: ManagedParts) -> None:
    """Small values take many times more memory than their JSON."""
    parts.broker.config = replace(parts.config, http_json_bytes_max=1_024)
    client = connect("admin")
    body = {"routing_key": "q", "payload": "x" * 2_000, "payload_encoding": "string"}
    path = "exchanges/%2F/amq.default/publish"
    assert (await client.post(path, json={**body, "properties": {}})).status_code == 200
    for name, value in (("properties", {"headers": {"x": [[]] * 600}}), ("else", [1] * 600)):
        said = await client.post(path, json=body | {name: value})
        assert (said.status_code, said.json()["reason"]) == (400, f"{name} is larger than 1024 bytes")
    said = await client.put("policies/%2F/p", json={"pattern": "", "definition": {"x": [0] * 600}})
    assert (said.status_code, said.json()["reason"]) == (400, "definition is larger than 1024 bytes")
    assert (await client.post(path, json=[0] * 600)).status_code == 400


@pytest.mark.trio
async def test_definitions_are_told_in_short_steps(
    connect: Connect, parts: ManagedParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Almost everything in the answer is encoded before its end, except a few names."""
    ends: list[object] = []

    def encode(body: object) -> bytes:
        ends.append(body)
        return answer.encode(body)

    client = connect("admin")
    told = {"queues": [{"name": f"q{n}", "vhost": "/", "durable": True} for n in range(50)]}
    assert (await client.post("definitions", json=told)).status_code == 204
    monkeypatch.setattr(http, "encode", encode)
    for path in ("definitions", "definitions/%2F"):
        assert len((await client.get(path)).json()["queues"]) == 50
        whole = ends.pop()
        assert isinstance(whole, dict)
        for part in whole.values():
            assert isinstance(part, str | dict) or all(isinstance(each, msgspec.Raw) for each in part)
