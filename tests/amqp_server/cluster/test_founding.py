"""How a cluster is founded, and what keeps a node from being part of it: the node says why, and no other node
suffers.
"""

from __future__ import annotations

import ipaddress
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

from conformance_tests.ports import free_ports
from tests.amqp_server.cluster.ring import HOST, NAMES, QUORUM, Ring, publish, take
from tests.reliability.node import Node, run_once, wait_until


def says(node: Node, *words: str) -> None:
    """Wait until the node's log has all of these in one line."""

    def said() -> bool:
        return any(all(word in line for word in words) for line in node.log().splitlines())

    wait_until(f"{words} in the log", said, state=lambda: node.log()[-3000:])


def serves(ring: Ring, *names: str) -> None:
    """Wait until these nodes accept changes and messages, and see each other."""
    first, last = names[0], names[-1]
    with ring.channel(first) as channel, ring.channel(last) as other:
        channel.queue_declare("proof", durable=True, arguments=QUORUM)
        publish(other, "proof", b"1")
        assert take(channel, "proof", 1) == [b"1"]
        other.queue_delete("proof")


@pytest.mark.parametrize("before", ["nothing", "one node's data"])
def test_a_cluster_of_one_that_grows_to_three(tmp_path: Path, before: str) -> None:
    """Nobody else has to agree, so it serves at once; the others join later."""
    ring = Ring(tmp_path, names=("n1",))
    node, durable = ring.nodes["n1"], [b"%d" % at for at in range(20)]
    if before != "nothing":
        alone = Node(tmp_path / "n1", "--disk-free-min-bytes", "1MiB")
        ring.nodes["n1"] = alone
        with alone:
            with ring.channel("n1") as channel:
                channel.queue_declare("q", durable=True, arguments=QUORUM)
                publish(channel, "q", *durable)
            assert alone.stop() == 0
        ring.nodes["n1"] = node
    try:
        ring.start("n1")
        with ring.channel("n1") as channel:
            if before == "nothing":
                channel.queue_declare("q", durable=True, arguments=QUORUM)
                publish(channel, "q", *durable)
            publish(channel, "q", b"more")
        assert node.stop() == 0
        ring.start("n1")
        serves(ring, "n1")
        node.kill()
        ring.start("n1")
        for name, port in zip(("n2", "n3"), free_ports(2), strict=True):
            ring.links[name] = port
            ring.names.append(name)
            ring.mqctl("n1", "cluster", "join", name, f"{HOST}:{port}")
            ring.place(name)
            ring.start(name)
            ring.mqctl("n1", "cluster", "grow", name)
        ring.equal("q", *NAMES)
        serves(ring, *NAMES)
        node.kill()
        ring.place("n1")
        with ring.channel("n2") as channel:
            assert take(channel, "q", 21) == [*durable, b"more"]
        ring.start("n1")
        serves(ring, *NAMES)
    finally:
        ring.close()


def test_founded_when_the_last_one_is_there(empty: Ring) -> None:
    for name in ("n2", "n3"):
        empty.nodes[name].launch()
    for name, other in (("n2", "n3"), ("n3", "n2")):
        says(empty.nodes[name], f"link to {other} up")
        # A node that waits for too long says so, and names the node that it waits for.
        says(empty.nodes[name], "waiting for the cluster; nodes that cannot be reached: n1")
    empty.nodes["n1"].launch()
    for name in NAMES:
        empty.nodes[name].ready()
    empty.formed()
    serves(empty, *NAMES)
    told = empty.status("n1")
    assert [node["name"] for node in told["nodes"]] == [*NAMES]
    assert {node["address"] for node in told["nodes"]} == {f"{HOST}:{port}" for port in empty.links.values()}
    # From now on a majority is enough, and nodes that stand alone must not use the directories.
    for node in empty.nodes.values():
        node.kill()
    code, _, errors = run_once(["--data-dir", str(empty.nodes["n1"].data), *_anywhere()])
    assert code == 1
    assert "belongs to node 'n1' of a cluster" in errors
    code, _, errors = run_once(
        [
            *("--data-dir", str(empty.nodes["n1"].data), "--node", "n2", "--peers", empty.peers()),
            *("--cluster-secret-file", str(empty.secret), *_anywhere()),
        ]
    )
    assert code == 1
    assert "belongs to node 'n1' of a cluster, not to 'n2'" in errors
    empty.names = ["n1", "n3"]
    empty.start("n1", "n3")
    serves(empty, "n1", "n3")


def _anywhere() -> tuple[str, ...]:
    return ("--amqp", f"{HOST}:0", "--http", f"{HOST}:0")


def test_what_ends_a_start(tmp_path: Path) -> None:
    secret, short = tmp_path / "secret", tmp_path / "short"
    secret.write_text("x" * 32)
    short.write_text("too short\n")
    for file in (secret, short):
        file.chmod(0o600)
    shown = tmp_path / "shown"
    shown.write_text("x" * 32)
    shown.chmod(0o644)
    port, other = free_ports(2)
    peers = f"n1={HOST}:{port},n2={HOST}:{other}"
    certificates = ("--cluster-tls-cert-file", str(secret), "--cluster-tls-key-file", str(secret))
    ends: list[tuple[int, str, tuple[str, ...]]] = [
        (2, "a list that contains this node, n3", ("--node", "n3")),
        (2, "each name once", ("--peers", peers + ",n1=127.0.0.1:1")),
        (2, "a list of name=host:port", ("--peers", "n1")),
        (2, "given if there are peers", ("--cluster-secret-file", "")),
        (1, "can't be read: No such file", ("--cluster-secret-file", str(tmp_path / "none"))),
        (
            1,
            f"--cluster-secret-file: others may read or write {shown} (mode 0644)",
            ("--cluster-secret-file", str(shown)),
        ),
        (1, "has 9 bytes, it must have at least 16", ("--cluster-secret-file", str(short))),
        (2, "given together with cluster_tls_key_file", certificates[:2]),
        (
            1,
            "holds no certificate in PEM format",
            (*certificates, "--cluster-tls-ca-file", str(secret)),
        ),
    ]

    def start(number: int) -> tuple[int, str, str]:
        own = ("--data-dir", str(tmp_path / f"data{number}"), *_anywhere())
        shared = ("--node", "n1", "--peers", peers, "--cluster-secret-file", str(secret))
        listening = ("--cluster-listen", f"{HOST}:0")
        return run_once([*own, *shared, *listening, *ends[number][2]])

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(start, range(len(ends))))
    for (code, text, _), (ended, out, errors) in zip(ends, outcomes, strict=True):
        assert (ended, out) == (code, ""), errors
        assert text in errors.splitlines()[-1]
        assert "Traceback" not in errors


def test_strangers_do_not_get_in_and_hurt_nobody(ring: Ring, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    wrong = tmp_path / "wrong"
    wrong.write_text("another secret altogether")
    wrong.chmod(0o600)
    peers = f"{ring.peers()},n4={HOST}:{port}"

    def place(directory: str, name: str, secret: Path) -> Node:
        home = tmp_path / directory
        home.mkdir()
        return Node(
            home,
            *("--node", name, "--peers", peers, "--cluster-secret-file", str(secret)),
            *("--cluster-listen", f"{HOST}:0"),
        )

    def heard(*words: str) -> None:
        wait_until(
            f"{words} in the log of a member",
            lambda: any(
                all(word in line for word in words)
                for node in ring.nodes.values()
                for line in node.log().splitlines()
            ),
        )

    liar = place("liar", "n4", wrong)
    unknown = place("unknown", "n4", ring.secret)
    double = place("double", "n2", ring.secret)
    strangers = (liar, unknown, double)
    try:
        for node in strangers:
            node.launch()
        says(liar, "WARNING", "its cluster secret or cluster name differs")
        heard("WARNING", "it claims to be 'n4', but its proof of the cluster secret is wrong")
        says(unknown, "WARNING", "'n4' is not among its peers")
        heard("WARNING", "'n4' is not among the peers of this node")
        heard("WARNING", "another 'n2' has a session already")
        serves(ring, *NAMES)
        assert {node["name"] for node in ring.status("n1")["nodes"]} == {*NAMES}
        assert all(node.running for node in strangers)
    finally:
        for node in strangers:
            node.kill()
    ring.formed()
    serves(ring, *NAMES)


def test_nodes_that_do_not_agree_on_who_they_are(empty: Ring) -> None:
    """One node lacks a peer: nothing is founded that would leave a node out, until that is mended."""
    less = empty.peers().rpartition(",")[0]
    empty.place("n1", peers=less)
    for name in NAMES:
        empty.nodes[name].launch()
    says(empty.nodes["n1"], "ERROR", "n2", "is configured with the peers n1, n2, n3, this node with n1, n2")
    says(empty.nodes["n2"], "ERROR", "n1", "is configured with the peers n1, n2, this node with n1, n2, n3")
    empty.nodes["n1"].kill()
    empty.place("n1")
    empty.nodes["n1"].launch()
    for name in NAMES:
        empty.nodes[name].ready()
    empty.formed()
    serves(empty, *NAMES)


def test_links_with_certificates(empty: Ring, tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    trusted, elsewhere = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(trusted)
    other.cert_pem.write_to_path(elsewhere)

    def certified(name: str, issuer: trustme.CA, ca: Path) -> None:
        key = tmp_path / f"{name}.pem"
        issuer.issue_cert(str(ipaddress.ip_address(HOST))).private_key_and_cert_chain_pem.write_to_path(key)
        key.chmod(0o600)
        options = ("--cluster-tls-cert-file", str(key), "--cluster-tls-key-file", str(key))
        empty.place(name, *options, "--cluster-tls-ca-file", str(ca))

    for name in NAMES:
        certified(name, authority, trusted)
    empty.start(*NAMES)
    serves(empty, *NAMES)
    # A node with a certificate of another authority, and one without any, stay outside.
    assert empty.nodes["n3"].stop() == 0
    certified("n3", other, trusted)
    empty.nodes["n3"].launch()
    says(empty.nodes["n1"], "WARNING", "TLS")
    empty.nodes["n3"].kill()
    empty.place("n3")
    empty.nodes["n3"].launch()
    says(empty.nodes["n3"], "n1", "no link to n1")
    serves(empty, "n1", "n2")
    assert not any(node["running"] for node in empty.status("n1")["nodes"] if node["name"] == "n3")
    empty.nodes["n3"].kill()
    certified("n3", authority, trusted)
    empty.start("n3")
    serves(empty, *NAMES)


def test_first_user_that_was_deleted_does_not_come_back(empty: Ring) -> None:
    """Everybody knows the first user's name and password."""
    empty.start(*NAMES)
    empty.mqctl("n1", "add_user", "ann", "secret")
    # She has no permission in any vhost, and needs none to look after the cluster.
    empty.mqctl("n1", "set_user_tags", "ann", "administrator")
    empty.mqctl("n1", "delete_user", "guest")
    for node in empty.nodes.values():
        node.kill()
    for name in NAMES:
        empty.nodes[name].launch()
    for name in NAMES:
        empty.nodes[name].ready()
        assert empty.ask("GET", name, "/api/whoami")[0] == 401
        assert "ann" in empty.mqctl(name, "--user", "ann", "--password", "secret", "list_users")


def test_administrator_is_made_again_by_any_node(empty: Ring, tmp_path: Path) -> None:
    empty.start(*NAMES)
    assert empty.ask("DELETE", "n1", "/api/users/guest?force=true")[0] == 204
    assert empty.ask("GET", "n3", "/api/whoami")[0] == 401
    password = tmp_path / "password"
    password.write_text("guest\n")
    password.chmod(0o600)
    assert empty.nodes["n2"].stop() == 0
    empty.place("n2", "--reset-administrator", "guest", "--default-password-file", str(password))
    empty.nodes["n2"].start()
    says(empty.nodes["n2"], "WARNING", "user 'guest' is now an administrator")
    wait_until("n3 knows it", lambda: empty.ask("GET", "n3", "/api/whoami")[0] == 200, state=empty.logs)
    empty.formed()
    serves(empty, *NAMES)
