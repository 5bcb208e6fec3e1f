"""The files with which others start mqd name only options, programs and ports that exist."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from amqp_server.config import Config
from amqp_server.example import example
from amqp_server.mqctl.command import mqctl
from amqp_server.mqctl.main import COMMANDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes" / "mqd.yaml"
FILES = [
    *(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"),
    *(ROOT / "docs").glob("*.md"),
    ROOT / "README.md",
]
OPTIONS = {declared.name for declared in fields(Config)}

assert COMMANDS


def test_only_options_that_there_are() -> None:
    named = {
        (path.name, name)
        for path in FILES
        for name in re.findall(r"\bMQD_([A-Z0-9_]+)", path.read_text())
        # Variables for people who run the tests.
        if not name.startswith("TEST_")
    }
    assert {name for _, name in named} >= {"PEERS", "NODE", "CLUSTER_SECRET_FILE", "DATA_DIR"}
    # Variables of the program, and of setup.py.
    known = OPTIONS | {"config", "pure", "build_jobs", "build_cache"}
    assert {pair for pair in named if pair[1].lower() not in known} == set()


def test_the_example_is_what_the_options_say() -> None:
    found = (DEPLOY / "mqd.example.toml").read_text()
    assert found == example()
    # With all its commented lines enabled, the file is a configuration.
    settings = tomllib.loads(re.sub(r"^#(\w+ = )", r"\1", found, flags=re.MULTILINE))
    assert {*settings} == OPTIONS
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    Config(**values)


def environment(pairs: dict[str, str]) -> Config:
    """Return the configuration of a process with this environment. Raises InvalidOption."""
    values: dict[str, Any] = {
        name.removeprefix("MQD_").lower(): value for name, value in pairs.items() if name.startswith("MQD_")
    }
    values["peers"] = tuple(values["peers"].split(","))
    return Config(**values)


def dockerfile_environment() -> dict[str, str]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    found = re.search(r"^ENV (.*)$", text, re.MULTILINE)
    assert found is not None
    return dict(pair.split("=", 1) for pair in found[1].split())


def test_compose() -> None:
    told = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    configs = {
        name: environment(dockerfile_environment() | service["environment"])
        for name, service in told["services"].items()
    }
    ports: list[str] = []
    for name, config in configs.items():
        service = told["services"][name]
        assert config.node == name
        # Each node is reached by its own name, at the port where it listens.
        assert config.peer_addresses[name] == (name, int(config.cluster_listen.rpartition(":")[2]))
        assert {*config.peer_addresses} == {*configs}
        secret = service["secrets"][0]
        assert config.cluster_secret_file == f"/run/secrets/{secret}" and secret in told["secrets"]
        volume, _, place = service["volumes"][0].partition(":")
        assert volume in told["volumes"] and config.data_dir.startswith(place)
        ports += [published.rpartition(":")[0] for published in service["ports"]]
        assert int(service["stop_grace_period"].removesuffix("s")) > 2 * config.drain_timeout_s
    assert len(set(ports)) == 6 and all(port.startswith("127.0.0.1:") for port in ports)


def container_user() -> int:
    found = re.search(r"useradd .*--uid (\d+)", (DEPLOY / "Dockerfile").read_text())
    assert found is not None
    return int(found[1])


def commands_in(path: Path, opening: str) -> list[str]:
    """Return the commands in the comments at the head of a file."""
    lines = [line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#")]
    return [line for line in lines if line.startswith(opening)]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_the_secret_of_compose_is_for_the_user_of_the_container_only(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (command,) = commands_in(DEPLOY / "compose.yaml", "(umask 077;")
    told = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    subprocess.run(["bash", "-ec", f'sudo() {{ "$@"; }}; {command}'], cwd=tmp_path, check=True, timeout=60)
    secret = tmp_path / "deploy" / told["secrets"]["cluster_secret"]["file"]
    # Compose mounts the file unchanged.
    state = secret.stat()
    assert (state.st_uid, state.st_mode & 0o777) == (container_user(), 0o400)
    assert len(secret.read_text().strip()) >= 16


def test_kubernetes_runs_the_image_of_this_version_with_no_more_rights_than_it_needs() -> None:
    told = [part for part in yaml.safe_load_all(KUBERNETES.read_text()) if part["kind"] == "StatefulSet"]
    pod = told[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    # Without a tag, or with `latest`, Kubernetes always asks a registry for it.
    assert container["image"] == f"mqd:{version}" and container["imagePullPolicy"] == "IfNotPresent"
    assert any(f"-t {container['image']} " in line for line in commands_in(KUBERNETES, "docker build"))
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == container_user()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    rights = container["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False and rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}


def test_kubernetes() -> None:
    told = {
        (part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(KUBERNETES.read_text())
    }
    stateful = told["StatefulSet", "mqd"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    given = {one["name"]: one.get("value", "") for one in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for number in range(stateful["replicas"]):
        pairs = dockerfile_environment() | given
        pairs |= {"MQD_NODE": f"mqd-{number}", "MQD_DEFAULT_USER": "user", "MQD_DEFAULT_PASSWORD": "secret"}
        config = environment(pairs)
        service = told["Service", stateful["serviceName"]]
        assert config.peer_addresses[config.node] == (
            f"{config.node}.{service['metadata']['name']}",
            ports["link"],
        )
        assert len(config.peer_addresses) == stateful["replicas"]
        listening = [config.amqp, config.http, config.cluster_listen]
        assert listening == [f"0.0.0.0:{ports[name]}" for name in ("amqp", "http", "link")]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert any(config.data_dir.startswith(mount) for mount in mounts)
        assert any(config.cluster_secret_file.startswith(mount) for mount in mounts)
        before = container["lifecycle"]["preStop"]["exec"]["command"]
        wait_s = float(before[before.index("--wait") + 1])
        assert pod["terminationGracePeriodSeconds"] > wait_s + config.drain_timeout_s + 1
    # The check before a stop is an existing command, and has a login.
    assert before[:3] == ["mqctl", "check", "quorum-critical"]
    with mqctl.make_context("mqctl", before[1:], resilient_parsing=False) as context:
        name, command, rest = mqctl.resolve_command(context, before[1:])
        assert name == "check" and command is not None
    assert {"MQCTL_USER", "MQCTL_PASSWORD"} <= {*given}
    # At a first start a node waits for the others, and must find them before they serve.
    assert stateful["podManagementPolicy"] == "Parallel"
    assert told["Service", "mqd-nodes"]["spec"]["publishNotReadyAddresses"] is True


def unit(name: str = "mqd.service") -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / name)
    return parser


def test_unit() -> None:
    service = unit()["Service"]
    command = service["ExecStart"].split()
    options = [word.lstrip("-").replace("-", "_") for word in command if word.startswith("--")]
    assert {*options} <= OPTIONS | {"config"}
    # A single node has no secret, and needs no file for one.
    assert "LoadCredential" not in service and "MQD_CLUSTER" not in service.get("Environment", "")
    cluster = unit("mqd.service.d/cluster.conf")["Service"]
    credential, _, path = cluster["LoadCredential"].partition(":")
    assert path.startswith("/etc/mqd/")
    assert cluster["Environment"] == f"MQD_CLUSTER_SECRET_FILE=%d/{credential}"
    assert float(service["TimeoutStopSec"]) > Config().drain_timeout_s + 10


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("cluster", [False, True])
def test_systemd_understands_it(tmp_path: Path, cluster: bool) -> None:
    """Ignore the path of the program, which need not be installed here."""
    if cluster:
        shutil.copytree(DEPLOY / "mqd.service.d", tmp_path / "mqd.service.d")
    text = (DEPLOY / "mqd.service").read_text().replace("/opt/mqd/bin/mqd", "/bin/true")
    verified = tmp_path / "mqd.service"
    verified.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(verified)],
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [
        line for line in done.stderr.splitlines() if "mqd.service" in line or "cluster.conf" in line
    ]
    assert complaints == [] and done.returncode == 0, done.stderr


def test_dockerfile_copies_what_the_build_needs() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert environment({"MQD_PEERS": "n1=h:1", "MQD_CLUSTER_SECRET_FILE": "s"} | dockerfile_environment())
    exposed = re.search(r"^EXPOSE (.*)$", text, re.MULTILINE)
    assert exposed is not None and exposed[1].split() == ["5672", "15672", "25672"]
    assert f"urlopen('http://{Config().http}/health'" in text
    # The image's version of Python is one that mqd runs on.
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    versions = re.findall(r"^FROM python:3\.(\d+)", text, re.MULTILINE)
    assert versions and all(int(version) >= int(required.removeprefix(">=3.")) for version in versions)


def test_kubernetes_takes_all_of_it() -> None:
    """By the schema of Kubernetes' API server, with which unknown fields are errors."""
    validate = pytest.importorskip("kubernetes_validate")
    parts = list(yaml.safe_load_all(KUBERNETES.read_text()))
    for part in parts:
        validate.validate(part, validate.latest_version(), strict=True)
    assert len(parts) == 4
    parts[-1]["spec"]["template"]["spec"]["containers"][0]["livenessProbes"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(parts[-1], validate.latest_version(), strict=True)


def test_kubernetes_spreads_the_nodes_over_zones() -> None:
    (stateful,) = [
        part for part in yaml.safe_load_all(KUBERNETES.read_text()) if part["kind"] == "StatefulSet"
    ]
    pod = stateful["spec"]["template"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
