"""deploy/backup.sh, used as docs/backup.md says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import lmdb
import pika
import pytest

from amqp_server.backup import CLUSTER_TABLE
from conformance_tests import programs
from conformance_tests.patience import PATIENCE_S, open_connection
from persistence.metadata import stored_key
from persistence.store import TABLES_MAX
from tests.reliability.node import Node

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "backup.md").read_text()
CARRIED_OUT = re.compile(r"<!-- carried out by tests/deploy/test_backup\.py -->\n```sh\n(.*?)```", re.DOTALL)
COPY = "/backup/mqd-20261123T020000Z"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line with the programs in the path."""
    path = f"{programs.directory()}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "FREEZE_MAX": "30"} | environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


def lines(text: str, data: Path, backups: Path, copy: str = "") -> list[str]:
    """The commands of a block of the page, with these directories."""
    found = [line.partition(" #")[0].strip() for line in text.splitlines()]
    places = {COPY: copy, "/var/lib/mqd": str(data), "/backup": str(backups)}
    return [" ".join(places.get(word, word) for word in line.split()) for line in found if line]


def publish(node: Node, *bodies: bytes) -> None:
    connection = open_connection(f"amqp://guest:guest@127.0.0.1:{node.port}/")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    for body in bodies:
        channel.basic_publish("", "kept", body, PERSISTENT, mandatory=True)
    connection.close()


def bodies(node: Node) -> list[bytes]:
    connection = open_connection(f"amqp://guest:guest@127.0.0.1:{node.port}/")
    channel = connection.channel()
    found = []
    while (got := channel.basic_get("kept", auto_ack=True))[0] is not None:
        assert got[2] is not None
        found.append(got[2])
    connection.close()
    return found


def files(directory: Path) -> dict[str, bytes]:
    """Return all files except the one that says which process uses the directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_what_the_page_tells(tmp_path: Path) -> None:
    every_night, restore = CARRIED_OUT.findall(PAGE)
    backups = tmp_path / "backups"
    with Node(tmp_path) as node:
        publish(node, b"one", b"two")
        save, check = lines(every_night, node.data, backups, "COPY")
        saved = shell(save)
        copy = saved.stdout.strip()
        assert saved.returncode == 0 and re.fullmatch(rf"{backups}/mqd-\d{{8}}T\d{{6}}Z", copy), saved.stderr
        before = files(Path(copy))
        # The copy uses other ports than the node, which goes on meanwhile.
        checked = shell(check.replace("COPY", copy))
        assert (checked.returncode, checked.stdout) == (0, "recovered 1 queues with 2 messages\n"), (
            checked.stderr
        )
        assert files(Path(copy)) == before and [path.name for path in backups.iterdir()] == [Path(copy).name]
        publish(node, b"after it")

        stop, put_back, start = lines(restore, node.data, backups, copy)
        refused = shell(put_back)
        assert refused.returncode == 1 and "a node runs on" in refused.stderr
        assert (stop, start) == ("systemctl stop mqd", "systemctl start mqd")
        node.stop()
        restored = shell(put_back)
        assert (restored.returncode, restored.stderr) == (0, "")
        node.start()
        assert bodies(node) == [b"one", b"two"]
        assert files(Path(copy)) == before
    # The earlier data is next to it.
    (earlier,) = tmp_path.glob("data.before-*")
    (tmp_path / "earlier").mkdir()
    earlier.rename(tmp_path / "earlier" / "data")
    with Node(tmp_path / "earlier") as node:
        assert bodies(node) == [b"one", b"two", b"after it"]


def test_old_copies_go_when_the_new_one_is_there(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    for day in range(1, 6):
        (backups / f"mqd-2020010{day}T000000Z").mkdir(parents=True)
    (backups / "mqd-of-another-kind").mkdir()
    with Node(tmp_path) as node:
        pass
    saved = shell(f"deploy/backup.sh save {node.data} {backups}", KEEP="3")
    assert saved.returncode == 0, saved.stderr
    kept = sorted(path.name for path in backups.iterdir())
    assert kept == [
        "mqd-20200104T000000Z",
        "mqd-20200105T000000Z",
        Path(saved.stdout.strip()).name,
        "mqd-of-another-kind",
    ]
    # A failed backup deletes no earlier one.
    (node.data / "main" / "data.mdb").unlink()
    failed = shell(f"deploy/backup.sh save {node.data} {backups}", KEEP="1")
    assert failed.returncode == 1 and "no copy was made" in failed.stderr
    assert sorted(path.name for path in backups.iterdir()) == kept


def test_a_damaged_copy_is_found_and_not_restored(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        publish(node, b"one")
    saved = shell(f"deploy/backup.sh save {node.data} {tmp_path / 'backups'}")
    copy = Path(saved.stdout.strip())
    file = copy / "main" / "data.mdb"
    os.truncate(file, file.stat().st_size // 2)
    checked = shell(f"deploy/backup.sh check {copy}")
    assert (
        checked.returncode == 1 and "no node can be started" in checked.stderr and "damaged" in checked.stderr
    )
    before = files(node.data)
    restored = shell(f"deploy/backup.sh restore {copy} {node.data}")
    assert restored.returncode == 1 and "can't be restored" in restored.stderr
    assert files(node.data) == before and not [*tmp_path.glob("data.*")]


def test_a_copy_of_a_clusters_node_is_not_put_back(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        pass
    # A node of a cluster has such records.
    with lmdb.open(str(node.data / "main"), max_dbs=TABLES_MAX) as env:
        table = env.open_db(b"metadata", create=False)
        with env.begin(db=table, write=True) as transaction:
            transaction.put(stored_key(CLUSTER_TABLE, "founded"), b"")
    saved = shell(f"deploy/backup.sh save {node.data} {tmp_path / 'backups'}")
    assert saved.returncode == 0 and "directory of a cluster's node" in saved.stderr
    restored = shell(f"deploy/backup.sh restore {saved.stdout.strip()} {node.data}")
    assert restored.returncode == 1 and "is of a cluster's node" in restored.stderr
    assert node.data.exists() and not [*tmp_path.glob("data.*")]


@pytest.mark.parametrize("arguments", ["", "save only-one", "drop a b"])
def test_it_says_how_it_is_used(arguments: str) -> None:
    told = shell(f"deploy/backup.sh {arguments}")
    assert told.returncode == 64 and "backup.sh restore COPY DATA_DIR" in told.stderr


def test_the_unit_saves_and_checks(tmp_path: Path) -> None:
    """The unit starts the script with its own directories."""
    text = (ROOT / "deploy" / "mqd-backup.service").read_text()
    started = re.search(r"^ExecStart=/bin/bash -c '(.*)'$", text, re.MULTILINE)
    assert started is not None
    with Node(tmp_path) as node:
        publish(node, b"one")
        line = started[1].replace("$$", "$").replace("backup.sh", "deploy/backup.sh")
        line = line.replace("/var/lib/mqd", str(node.data)).replace(
            "/var/backups/mqd", str(tmp_path / "copies")
        )
        done = shell(line)
    assert (done.returncode, done.stdout) == (0, "recovered 1 queues with 1 messages\n"), done.stderr
    assert len([*(tmp_path / "copies").iterdir()]) == 1
    # If the script fails, the unit fails.
    (node.data / "main" / "data.mdb").unlink()
    assert shell(line).returncode == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", ["mqd-backup.service", "mqd-backup.timer"])
def test_systemd_understands_it(tmp_path: Path, name: str) -> None:
    for unit in ("mqd-backup.service", "mqd-backup.timer"):
        shutil.copy(ROOT / "deploy" / unit, tmp_path / unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)],
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "mqd-backup" in line]
    assert complaints == [] and done.returncode == 0, done.stderr
