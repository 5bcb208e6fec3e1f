"""Requests by chance to every path of the management API, on a broker of its own: `make fuzz-api`, in two minutes.

    python -m tests.fuzz_api [--seconds 120] [--seed N]

schemathesis makes them from docs/openapi.json, right ones and wrong ones; names are those of things that there are, every
other time. A defect is an answer with 500, one whose status, headers or body are not as described, a request that ends
the node, and a traceback in its log. A finding ends with a curl command that does it again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from amqp_server.reference.arguments import QUEUES
from tests.reliability.node import Node

ROOT = Path(__file__).parents[1]
DESCRIPTION = ROOT / "docs" / "openapi.json"
CONFIGURATION = Path(__file__).with_name("fuzz_api.toml")
PROGRAM = ROOT / "build" / "fuzz-api" / "bin" / "schemathesis"
#: Beyond the time that it is given, s: it ends what it has begun.
GRACE_S = 240
USER, PASSWORD = "fuzzer", "fuzzer"
#: They would end the run: the node stops, or blocks its publishers.
LEFT_OUT = (("post", "/api/nodes/{node}/stop"), ("put", "/api/nodes/{node}/memory-limit"))
#: What there is at the beginning.
PREPARED = (
    ("add_user", USER, PASSWORD),
    ("set_user_tags", USER, "administrator"),
    ("set_permissions", USER, ".*", ".*", ".*"),
    ("add_user", "app", "app"),
    ("set_permissions", "app", ".*", ".*", ".*"),
    ("add_vhost", "other"),
    ("set_permissions", "-p", "other", USER, ".*", ".*", ".*"),
    ("declare_queue", "q"),
    ("declare_queue", "s", "-a", "x-queue-type=stream"),
    ("declare_queue", "g", "-a", "x-queue-type=stream-group", "-a", "x-stream=s"),
    ("declare_queue", "u", "-a", "x-queue-type=quorum"),
    ("declare_exchange", "x", "topic"),
    ("declare_exchange", "p", "x-super-stream", "-a", "x-partitions=2"),
    ("declare_binding", "x", "q", "#"),
    ("declare_binding", "x", "s", "#"),
    ("publish", "x", "a.b", "body"),
    ("publish", "amq.default", "u", "body"),
    ("set_policy", "l", "^q", '{"max-length": 100}'),
)
NAMES = {
    "vhost": ["/", "other"],
    "name": ["q", "s", "g", "u", "x", "p", "l", "new"],
    "user": ["app"],
    "node": ["n1"],
    "exchange": ["x"],
    "source": ["x"],
    "destination": ["q", "s"],
    "component": ["policy", "shovel", "vhost-limits"],
    "protocol": ["amqp"],
    "unit": ["days"],
    "properties": ["~"],
}
LIMITS = ["max-connections", "max-queues", "max-channels"]
#: Values that get further than most: fields of bodies, by the name of the schema.
TYPES = ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-super-stream"]
QUEUE_ARGUMENTS = {name: one.example for name, one in QUEUES.items() if one.example is not None}
POLICY: dict[str, Any] = {
    "type": "object",
    "required": ["pattern", "definition"],
    "properties": {
        "pattern": {"anyOf": [{"enum": ["^q", "", "(", "(?!q)"]}, {}]},
        "definition": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "max-length": {"anyOf": [{"type": "integer"}, {}]},
                        "message-ttl": {"anyOf": [{"type": "integer", "minimum": 0}, {}]},
                        "overflow": {"anyOf": [{"enum": ["drop-head", "reject-publish"]}, {}]},
                        "dead-letter-exchange": {"anyOf": [{"type": "string"}, {}]},
                        "alternate-exchange": {"anyOf": [{"type": "string"}, {}]},
                        "max-age": {"anyOf": [{"enum": ["1h", "0D"]}, {}]},
                        "delivery-limit": {"anyOf": [{"type": "integer"}, {}]},
                    },
                    "additionalProperties": False,
                },
                {"type": "object"},
            ]
        },
        "priority": {"anyOf": [{"type": "integer"}, {}]},
        "apply-to": {"anyOf": [{"enum": ["queues", "exchanges", "all", "streams"]}, {}]},
    },
    "additionalProperties": False,
}
NAMED: dict[str, Any] = {
    "name": {"anyOf": [{"type": "string"}, {}]},
    "vhost": {"anyOf": [{"enum": ["/", "other"]}, {}]},
}


def _rows(**more: object) -> dict[str, object]:
    row = {"type": "object", "properties": NAMED | more, "additionalProperties": False}
    return {"anyOf": [{"type": "array", "items": row, "maxItems": 3}, {}]}


FLAGS: dict[str, Any] = {"durable": {"type": "boolean"}, "auto_delete": {"type": "boolean"}}
DEFINITIONS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "vhosts": _rows(default_queue_type={}, metadata={}),
        "users": _rows(password_hash={}, hashing_algorithm={}, tags={}, limits={}),
        "permissions": _rows(user={"enum": ["app"]}, configure={}, write={}, read={}),
        "topic_permissions": _rows(user={"enum": ["app"]}, exchange={}, write={}, read={}),
        "parameters": _rows(component={"enum": ["shovel", "vhost-limits", "x"]}, value={}),
        "global_parameters": _rows(value={}),
        "policies": _rows(**POLICY["properties"]),
        "queues": _rows(**FLAGS, arguments={}),
        "exchanges": _rows(**FLAGS, type={"enum": TYPES}, internal={}, arguments={}),
        "bindings": _rows(source={}, destination={}, destination_type={}, routing_key={}, arguments={}),
    },
    "additionalProperties": False,
}


def described() -> dict[str, Any]:
    """The description, with names of what there is."""
    told: dict[str, Any] = json.loads(DESCRIPTION.read_text())
    for method, path in LEFT_OUT:
        del told["paths"][path][method]
    for operations in told["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                known = NAMES.get(parameter.get("name", ""))
                if known is not None and parameter["in"] == "path":
                    parameter["schema"] = {"anyOf": [{"enum": known}, parameter["schema"]]}
    _deepen(told)
    told["paths"] = {path: operations for path, operations in told["paths"].items() if operations}
    return told


def _deepen(told: dict[str, Any]) -> None:
    """Describe bodies and names more closely than the API does: what is refused at once tries little."""
    schemas, paths = told["components"]["schemas"], told["paths"]
    schemas["ExchangeRequest"]["properties"]["type"] = {"anyOf": [{"enum": TYPES}, {"type": "string"}]}
    arguments: dict[str, Any] = {
        name: {"anyOf": [{"enum": [value]}, {}]} for name, value in QUEUE_ARGUMENTS.items()
    }
    arguments["x-queue-type"] = {"enum": ["classic", "quorum", "stream", "stream-group"]}
    schemas["QueueRequest"]["properties"]["arguments"] = {"type": "object", "properties": arguments}
    for path in paths:
        if path.startswith(("/api/vhost-limits/", "/api/user-limits/")) and "put" in paths[path]:
            paths[path]["put"]["parameters"][-1]["schema"] = {"enum": LIMITS}
            _body(paths[path]["put"])["properties"]["value"] = {"anyOf": [{"type": "integer"}, {}]}
        if path.endswith("policies/{vhost}/{name}"):
            paths[path]["put"]["requestBody"]["content"]["application/json"]["schema"] = POLICY
        if path.startswith("/api/definitions"):
            paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"] = DEFINITIONS


def _body(operation: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
    return schema


def run(seconds: int, seed: int, directory: Path, rest: list[str]) -> int:
    """Return 0 if nothing was found."""
    description = directory / "openapi.json"
    description.write_text(json.dumps(described()))
    # A shovel that is made by chance connects to nobody.
    options = ["--disk-free-min-bytes", "0", "--log-level", "warning", "--shovel-hosts", "127.0.0.1"]
    # Wrong logins are tried on purpose, and nobody is to wait for that.
    options += ["--login-failures-free", "1000000"]
    with Node(directory, *options) as node:
        for words in PREPARED:
            node.mqctl(*words)
        command = [str(PROGRAM), "--config-file", str(CONFIGURATION), "run", str(description)]
        command += ["--url", f"http://127.0.0.1:{node.http}", "--auth", f"{USER}:{PASSWORD}"]
        command += ["--max-time", str(seconds), "--seed", str(seed), "--phases", "coverage,fuzzing", *rest]
        print(f"seed {seed}", flush=True)
        try:
            code = subprocess.run(command, cwd=directory, timeout=seconds + GRACE_S, check=False).returncode
        except subprocess.TimeoutExpired:
            code = _failed(f"not done after {seconds + GRACE_S} s")
        if not node.running:
            code = _failed("the node has ended")
        elif node.stop() != 0:
            code = _failed("the node did not stop as it should")
        log = node.log()
    if any(mark in log for mark in ("Traceback", " CRITICAL ")):
        code = _failed("\n".join(line for line in log.splitlines() if "access denied" not in line)[-20_000:])
    return code


def _failed(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests by chance to the management API.")
    parser.add_argument("--seconds", type=int, default=120, help="for so long")
    parser.add_argument("--seed", type=int, default=None, help="the same requests again")
    options, rest = parser.parse_known_args()
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as directory:
        return run(options.seconds, seed, Path(directory), rest)


if __name__ == "__main__":
    sys.exit(main())
