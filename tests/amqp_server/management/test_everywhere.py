"""Each node answers for the whole cluster, also while another node is down or does not answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from pamqp import commands

from amqp_server.broker.access.token_permissions import Token
from amqp_server.cluster.api_questions import Questions, Unanswered
from amqp_server.connection.login.password_checks import Outcome
from amqp_server.management.request.questions import Question
from amqp_server.management.serving.http import Api
from quorum_queue.cluster import frames

from .conftest import BODY_BYTES_MAX, ManagedNode, before_whole_rows, published

pytestmark = pytest.mark.trio


class Others:
    """The other nodes, in the same process. See questions.Others."""

    def __init__(self, nodes: dict[str, Api | None]) -> None:
        self.nodes = nodes

    def names(self) -> Sequence[str]:
        return list(self.nodes)

    async def ask(self, node: str, question: bytes) -> list[bytes] | None:
        api = self.nodes[node]
        if api is None:
            await trio.lowlevel.checkpoint()
            return None
        return [part async for part in api.answer(question)]


class Two:
    """Nodes, each with a client, and a node that is down; two of three unless other names are given."""

    def __init__(self, path: Path, up: Sequence[str] = ("n1", "n2"), down: Sequence[str] = ("n3",)) -> None:
        self.nodes = {name: ManagedNode(path, node=name) for name in up}
        self.apis = {name: Api(node.parts, BODY_BYTES_MAX) for name, node in self.nodes.items()}
        self.peers = {
            name: node.peer(name=f"127.0.0.1:{port} -> 127.0.0.1:5672")
            for port, (name, node) in enumerate(self.nodes.items(), 1)
        }
        self.asked: dict[str, Any] = {}
        for name, peer in self.peers.items():
            peer.session.opened()
            peer.call(1, commands.Channel.Open())
            self.asked[name] = {other: api for other, api in self.apis.items() if other != name}
            self.asked[name] |= dict.fromkeys(down)
            self.nodes[name].others = Others(self.asked[name])

    def declare(self, queue: str, home: str) -> None:
        """Declare a queue as the topology has it on both nodes: the queue is on `home`."""
        for name, node in self.nodes.items():
            self.peers[name].call(1, commands.Queue.Declare(queue=queue, durable=True))
            declared = node.broker.vhost("/").queues[queue]
            declared.record = declared.record.__class__(
                **{
                    field: getattr(declared.record, field)
                    for field in declared.record.__struct_fields__
                    if field != "node"
                },
                node=home,
            )


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


@pytest.fixture
async def ask(two: Two) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    clients: list[httpx.AsyncClient] = []
    apps = {name: api.app(requests_max=8) for name, api in two.apis.items()}

    def made(node: str, user: str = "admin") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(apps[node], client=("127.0.0.1", 12345))
        clients.append(
            httpx.AsyncClient(transport=transport, base_url="http://b/api/", auth=httpx.BasicAuth(user, user))
        )
        return clients[-1]

    yield made
    for client in clients:
        await client.aclose()


Ask = Callable[..., httpx.AsyncClient]


async def test_connections_and_channels_of_all_nodes(ask: Ask) -> None:
    for node in ("n1", "n2"):
        for path in ("connections", "channels"):
            answer = await ask(node).get(path)
            assert sorted(row["node"] for row in answer.json()) == ["n1", "n2"], path
            assert answer.headers["x-missing-nodes"] == "n3"
    page = (await ask("n1").get("connections?page=1&page_size=1&sort=node&sort_reverse=true")).json()
    assert (page["total_count"], [row["node"] for row in page["items"]]) == (2, ["n2"])


async def test_one_connection_of_another_node(ask: Ask) -> None:
    name = "127.0.0.1%3A2%20-%3E%20127.0.0.1%3A5672"
    assert (await ask("n1").get(f"connections/{name}")).json()["node"] == "n2"
    assert [row["number"] for row in (await ask("n1").get(f"connections/{name}/channels")).json()] == [1]
    assert (await ask("n1").get(f"channels/{name}%20(1)")).json()["node"] == "n2"
    for path in ("connections/x", "connections/x/channels", "channels/x%20(1)"):
        assert (await ask("n1").get(path)).status_code == 404, path


async def test_a_connection_of_another_node_is_closed(two: Two, ask: Ask) -> None:
    name = "127.0.0.1%3A2%20-%3E%20127.0.0.1%3A5672"
    answer = await ask("n1").delete(f"connections/{name}", headers={"x-reason": "moved"})
    assert answer.status_code == 204
    two.peers["n2"].collect()
    (told,) = [each for _, each in two.peers["n2"].answers() if isinstance(each, commands.Connection.Close)]
    assert told.reply_text == "CONNECTION_FORCED - moved"
    assert (await ask("n1").delete(f"connections/{name}")).status_code == 404


async def test_rights_hold_on_the_other_node(ask: Ask) -> None:
    name = "127.0.0.1%3A2%20-%3E%20127.0.0.1%3A5672"
    assert (await ask("n1", "manager").get("connections")).json() == []
    assert (await ask("n1", "manager").get(f"connections/{name}")).status_code == 404
    assert (await ask("n1", "watcher").delete(f"connections/{name}")).status_code in (401, 404)
    assert len((await ask("n1", "watcher").get("connections")).json()) == 2


class AnyToken:
    """Tokens whose text is a tag and a scope."""

    bytes_max = 1_024

    async def log_in(self, checks: Any, peer: str, secret: str, waiting_max: int) -> Any:
        return Outcome.ACCEPTED, "", Token("anna", tuple(secret.split(" ")), 2e9)


async def test_the_other_node_has_not_seen_the_token(two: Two) -> None:
    two.nodes["n1"].tokens = AnyToken()
    transport = httpx.ASGITransport(two.apis["n1"].app(requests_max=8), client=("127.0.0.1", 12345))
    async with httpx.AsyncClient(transport=transport, base_url="http://b/api/") as client:

        async def nodes(scopes: str) -> list[str]:
            answer = await client.get("vhosts/%2F/connections", headers={"authorization": f"Bearer {scopes}"})
            assert answer.status_code == 200, answer.text
            return sorted(row["node"] for row in answer.json())

        assert await nodes("tag:monitoring") == ["n1", "n2"]
        # These connections belong to another user.
        assert await nodes("tag:management read:*/*") == []
        refused = await client.get(
            "vhosts/%2F/connections", headers={"authorization": "Bearer tag:management"}
        )
        assert refused.status_code == 401
    assert not any(node.broker.access.permissions._grants for node in two.nodes.values())


async def test_overview_adds_up(two: Two, ask: Ask) -> None:
    two.declare("q", "n2")
    for peer in two.peers.values():
        peer.send(*(published(1, "", "q", b"x") for _ in range(3)))
    told = (await ask("n1").get("overview")).json()
    assert told["object_totals"]["connections"] == told["object_totals"]["channels"] == 2
    assert told["object_totals"]["queues"] == 1
    # The count comes from the queue's node only: in this test the other one has a copy.
    assert told["queue_totals"]["messages"] == 3
    assert told["message_stats"]["publish"] == 6
    assert sorted(each["node"] for each in told["listeners"]) == ["n1", "n1", "n2", "n2"]
    assert told["missing_nodes"] == ["n3"]
    assert told["churn_rates"]["connection_created"] == 2


async def test_nodes_are_listed_whether_they_are_up_or_not(ask: Ask) -> None:
    rows = (await ask("n1").get("nodes")).json()
    assert [(row["name"], row["running"]) for row in rows] == [("n1", True), ("n2", True), ("n3", False)]
    assert (await ask("n1").get("nodes/n2")).json()["running"] is True
    assert (await ask("n1").get("nodes/n3")).json()["running"] is False
    assert (await ask("n1").get("nodes/n4")).status_code == 404


async def test_a_queue_is_told_by_its_own_node_and_counted_by_all(two: Two, ask: Ask) -> None:
    two.declare("q", "n2")
    two.peers["n1"].send(published(1, "", "q", b"x"))
    two.peers["n2"].send(*(published(1, "", "q", b"x") for _ in range(4)))
    for node in ("n1", "n2"):
        (row,) = (await ask(node).get("queues")).json()
        one = (await ask(node).get("queues/%2F/q")).json()
        for told in (row, one):
            assert (told["node"], told["messages"], told["message_stats"]["publish"]) == ("n2", 4, 5)
        assert (await ask(node).get("exchanges/%2F/amq.default")).json()["message_stats"]["publish_in"] == 5


RATE = "message_stats.publish_details.rate"


async def busy_queues(two: Two) -> None:
    """Make 20 queues on two nodes; each has got more messages than the one before, and one of them from
    clients of both nodes.
    """

    async def sample() -> None:
        for node in two.nodes.values():
            node.clock.now_ms += 5_000
            await node.sampler.sample()

    for number in range(20):
        two.declare(f"q{number:02}", "n2" if number % 2 else "n1")
    for _ in range(2):
        await sample()
        for number in range(20):
            two.peers["n2"].send(*(published(1, "", f"q{number:02}", b"x") for _ in range(number)))
        # No node knows of both clients.
        for peer in two.peers.values():
            peer.send(*(published(1, "", "q03", b"x") for _ in range(10)))
    await sample()


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("name", ["q19", "q18", "q17"]),
        ("messages", ["q19", "q17", "q15"]),
        ("message_stats.publish", ["q03", "q19", "q18"]),
        (RATE, ["q03", "q19", "q18"]),
        ("node", ["q01", "q03", "q05"]),
    ],
)
@pytest.mark.parametrize("earlier", [False, True])
async def test_a_page_of_queues_of_all_nodes(
    two: Two, ask: Ask, monkeypatch: pytest.MonkeyPatch, sort: str, first: list[str], earlier: bool
) -> None:
    await busy_queues(two)
    if earlier:
        monkeypatch.setattr("amqp_server.management.request.other_nodes.Question", EarlierQuestion)
    made: list[str] = []
    before_whole_rows(monkeypatch, lambda queue: made.append(queue.name))
    answer = await ask("n1").get(f"queues?page=1&page_size=3&sort={sort}&sort_reverse=true")
    told = answer.json()
    assert [row["name"] for row in told["items"]] == first, told["items"]
    assert (told["total_count"], answer.headers["x-missing-nodes"]) == (20, "n3")
    if not earlier:
        assert sorted(made) == sorted(first)
    whole = {row["name"]: row for row in (await ask("n2").get("queues")).json()}
    assert [whole[row["name"]] for row in told["items"]] == told["items"]


class EarlierQuestion(Question):
    """A question of an earlier version, which asks for whole lists only."""

    def __post_init__(self) -> None:
        self.part = None


async def test_a_page_says_what_is_down(two: Two, ask: Ask) -> None:
    two.declare("a", "n2")
    two.declare("b", "n3")
    for sort in ("state", "name"):
        told = (await ask("n1").get(f"queues?page=1&sort={sort}")).json()["items"]
        assert sorted((row["name"], row["state"]) for row in told) == [("a", "running"), ("b", "down")]
    told = (await ask("n1").get("queues?page=1&page_size=1&sort=state")).json()["items"]
    assert [row["name"] for row in told] == ["b"]


async def test_a_queue_of_a_node_that_is_down(two: Two, ask: Ask) -> None:
    two.declare("q", "n3")
    answer = await ask("n1").get("queues")
    assert [(row["name"], row["state"]) for row in answer.json()] == [("q", "down")]


async def test_consumers_are_told_by_their_clients_nodes(two: Two, ask: Ask) -> None:
    two.declare("q", "n2")
    for name, peer in two.peers.items():
        peer.call(1, commands.Basic.Consume(queue="q", consumer_tag=name))
    rows = (await ask("n1").get("consumers")).json()
    assert sorted((row["consumer_tag"], row["channel_details"]["node"]) for row in rows) == [
        ("n1", "n1"),
        ("n2", "n2"),
    ]
    one = (await ask("n1").get("queues/%2F/q")).json()
    assert sorted(each["consumer_tag"] for each in one["consumer_details"]) == ["n1", "n2"]


async def test_vhosts_say_which_nodes_are_down(ask: Ask) -> None:
    (row, _) = (await ask("n1").get("vhosts?sort=name")).json()
    assert row["cluster_state"] == {"n1": "running", "n2": "running", "n3": "nodedown"}


# -- questions over links ------------------------------------------------------------------------------------


class Links:
    """Two ends in one process."""

    def __init__(self, features: tuple[str, ...] = (frames.MANAGEMENT_FEATURE,)) -> None:
        self.other: Questions
        self.features = features
        self.up = True
        self.mute = False

    def send(self, peer: str, parts: list[bytes]) -> bool:
        frame = memoryview(b"".join(parts))
        if self.mute or not self.up:
            return self.up
        if frame[0] == frames.ASK:
            self.other.asked("a", *frames.parse_ask(frame))
        else:
            number, last, part = frames.parse_answer(frame)
            self.other.answered("b", number, last=last, part=part)
        return True

    def pending_bytes(self, peer: str) -> int:
        return 0

    def connected(self) -> list[str]:
        return []

    def features_of(self, peer: str) -> tuple[str, ...]:
        return self.features if self.up else ()


async def three_parts(question: bytes) -> AsyncGenerator[bytes, None]:
    for number in range(3):
        await trio.lowlevel.checkpoint()
        yield question + b"%d" % number


def pair(**options: Any) -> tuple[Questions, Questions, Links]:
    one, other = Links(), Links()
    wanted = {"timeout_s": 5.0, "bytes_max": 1_000} | options
    asking, answering = Questions(one, **wanted), Questions(other, **wanted)
    one.other, other.other = answering, asking
    return asking, answering, one


async def test_an_answer_in_parts(nursery: trio.Nursery) -> None:
    asking, answering, _ = pair()
    nursery.start_soon(answering.run, three_parts)
    await trio.testing.wait_all_tasks_blocked()
    assert await asking.ask("b", b"q") == [b"q0", b"q1", b"q2"]


async def test_a_question_waits_for_a_node_that_answers_soon(nursery: trio.Nursery) -> None:
    asking, answering, _ = pair()
    with pytest.raises(Unanswered):
        await asking.ask("b", b"q")
    answering.answers_soon()
    answers: list[list[bytes]] = []

    async def ask() -> None:
        answers.append(await asking.ask("b", b"q"))

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()
    assert not answers
    nursery.start_soon(answering.run, three_parts)
    await trio.testing.wait_all_tasks_blocked()
    assert answers == [[b"q0", b"q1", b"q2"]]


async def test_nobody_waits_for_ever(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    asking, answering, links = pair()
    links.mute = True
    nursery.start_soon(answering.run, three_parts)
    began = trio.current_time()
    with pytest.raises(Unanswered):
        await asking.ask("b", b"q")
    assert trio.current_time() - began == 5.0


async def test_a_link_that_breaks_ends_the_wait(nursery: trio.Nursery) -> None:
    asking, _, links = pair()
    links.mute = True

    async def breaks() -> None:
        await trio.testing.wait_all_tasks_blocked()
        asking.link_down("b")

    nursery.start_soon(breaks)
    with pytest.raises(Unanswered):
        await asking.ask("b", b"q")


async def test_a_node_of_an_earlier_version_is_not_asked() -> None:
    asking, _, links = pair()
    links.features = ()
    with pytest.raises(Unanswered):
        await asking.ask("b", b"q")


async def test_a_node_without_answers_says_so_at_once() -> None:
    asking, _, _ = pair()
    with pytest.raises(Unanswered):
        await asking.ask("b", b"q")


async def test_an_answer_is_bounded(nursery: trio.Nursery) -> None:
    asking, answering, _ = pair(bytes_max=5)
    nursery.start_soon(answering.run, three_parts)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(Unanswered):
        await asking.ask("b", b"qqqq")


async def test_an_alarm_of_another_node_is_one_of_the_cluster(two: Two, ask: Ask) -> None:
    two.nodes["n2"].broker.alarms.set("memory", True)
    for node in two.nodes:
        answer = await ask(node).get("health/checks/alarms")
        assert answer.status_code == 503
        assert answer.json()["alarms"] == [{"node": "n2", "resource": "memory"}]
        assert answer.headers["x-missing-nodes"] == "n3"
        answer = await ask(node).get("healthchecks/node/n2")
        assert (answer.status_code, answer.json()["reason"]) == (503, "resource alarm(s) in effect: memory")
        assert (await ask(node).get("healthchecks/node/n1")).json() == {"status": "ok"}
        answer = await ask(node).get("healthchecks/node/n3")
        assert (answer.status_code, answer.json()["reason"]) == (503, "node n3 does not answer")
        assert (await ask(node).get("healthchecks/node/n4")).status_code == 404
    assert (await ask("n1").get("health/checks/local-alarms")).json() == {"status": "ok"}
    assert (await ask("n2").get("health/checks/local-alarms")).status_code == 503


async def test_logins_of_each_node(two: Two, ask: Ask) -> None:
    wrong = httpx.BasicAuth("admin", "wrong")
    assert (await ask("n2").get("whoami", auth=wrong)).status_code == 401
    # A request without a password is no failed login.
    assert (await ask("n2").get("whoami", auth=lambda request: request)).status_code == 401
    assert (await ask("n2").get("whoami")).status_code == 200
    for node in ("n2", "n1"):
        amqp, http = (await ask(node).get("auth/attempts/n2")).json()
        assert (amqp["protocol"], amqp["auth_attempts"]) == ("amqp091", 0)
        assert http["auth_attempts_failed"] == 1
        assert http["auth_attempts"] == http["auth_attempts_succeeded"] + 1
    assert (await ask("n1").get("auth/attempts/n2/source")).json() == []
    assert (await ask("n1").get("auth/attempts/n3")).status_code == 503
    assert (await ask("n1").get("auth/attempts/n4")).status_code == 404
    assert (await ask("n1", "watcher").delete("auth/attempts/n2")).status_code == 401
    assert (await ask("n1").delete("auth/attempts/n2")).status_code == 204
    _, http = (await ask("n1").get("auth/attempts/n2")).json()
    assert http["auth_attempts"] == 0


async def test_samples_of_nodes_are_added_by_their_ages(two: Two, ask: Ask) -> None:
    """The nodes do not take their samples at the same moment, and one clock is an hour behind."""
    two.declare("q", "n1")
    two.nodes["n2"].clock.shift_ms -= 3_600_000 + 3_000
    for _ in range(3):
        for node, peer in two.peers.items():
            peer.send(*(published(1, "", "q", b"x") for _ in range(5)))
            two.nodes[node].clock.now_ms += 5_000
            await two.nodes[node].sampler.sample()
    told = (await ask("n1").get("overview?msg_rates_age=10&msg_rates_incr=5")).json()
    details = told["message_stats"]["publish_details"]
    assert [each["sample"] for each in details["samples"]] == [30, 20, 10]
    newest = details["samples"][0]["timestamp"]
    assert 0 <= two.nodes["n1"].clock.wall_ms() - newest < 5_000
