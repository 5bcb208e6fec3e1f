"""Each action of a page: the dialog's text, the result on the page, and the result by the API."""

from __future__ import annotations

import re
from typing import Any

import pika
import pytest

from amqp_server.testing import Broker
from amqp_server.testing.api import ApiError

from .visit import Visit, declare, enter, expect, publish, unfold

GET_OK, NOT_FOUND = 200, 404


def shows(page: Any, heading: str) -> None:
    expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()


def row(page: Any, *texts: str) -> Any:
    """The row of a table that has these texts."""
    found = page.get_by_role("row")
    for text in texts:
        found = found.filter(has_text=text)
    return found


def status(broker: Broker, path: str) -> int:
    try:
        broker.api("GET", path)
    except ApiError as error:
        return error.status
    return GET_OK


# -- queues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        (
            "classic",
            {"durable": False, "auto_delete": True, "x-max-length": "5"},
            {"durable": False, "auto_delete": True, "arguments": {"x-max-length": 5}},
        ),
        ("quorum", {}, {"durable": True, "auto_delete": False, "arguments": {}}),
        (
            "stream",
            {"x-max-age": "1h", "x-stream-compression": "zstd", "arguments": '{"note": [1]}'},
            {
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-max-age": "1h", "x-stream-compression": "zstd", "note": [1]},
            },
        ),
    ],
)
def test_a_queue_is_declared(
    visit: Visit, broker: Broker, kind: str, values: dict[str, Any], told: dict[str, Any]
) -> None:
    page = visit.log_in()
    visit.go("queues")
    visit.send("Declare a queue", "Declare", name=f"a {kind}", type=kind, **values)
    shows(page, f"Queue a {kind}")
    expect(page.locator(".facts")).to_contain_text(kind)
    found = broker.api("GET", f"/api/queues/%2F/a%20{kind}")
    told["arguments"]["x-queue-type"] = kind
    assert {name: found[name] for name in told} == told and found["type"] == kind


def test_a_queue_that_is_refused(visit: Visit, broker: Broker) -> None:
    """The form stays, with its input and the reason."""
    page = visit.log_in()
    visit.go("queues")
    page.get_by_role("button", name="Declare a queue").click()
    dialog = page.get_by_role("dialog")
    enter(dialog.locator("[name=name]"), "odd")
    unfold(dialog)
    enter(dialog.locator("[name=x-max-length]"), "-1")
    dialog.get_by_role("button", name="Declare").click()
    expect(dialog.get_by_role("alert")).to_contain_text("x-max-length")
    expect(dialog.locator("[name=name]")).to_have_value("odd")
    expect(dialog.locator("[name=x-max-length]")).to_have_value("-1")
    assert status(broker, "/api/queues/%2F/odd") == NOT_FOUND


def test_a_form_has_the_arguments_of_the_chosen_type(visit: Visit, broker: Broker) -> None:
    """What was entered for another type is there again when it is chosen, and is not sent otherwise."""
    declare(broker, "lines", **{"x-queue-type": "stream"})
    page = visit.log_in()
    visit.go("queues")
    page.get_by_role("button", name="Declare a queue").click()
    dialog = page.get_by_role("dialog")
    unfold(dialog)
    kind, length = dialog.locator("[name=type]"), dialog.locator("[name=x-max-length]")
    for name, types in {
        "x-max-length": {"classic", "quorum"},
        "x-max-priority": {"classic"},
        "x-delivery-limit": {"quorum", "stream-group"},
        "x-max-age": {"stream"},
        "x-stream": {"stream-group"},
    }.items():
        for each in ("classic", "quorum", "stream", "stream-group"):
            enter(kind, each)
            expect(dialog.locator(f"[name={name}]")).to_have_count(int(each in types))
    enter(kind, "quorum")
    enter(length, "7")
    enter(kind, "stream-group")
    expect(length).to_have_count(0)
    enter(dialog.locator("[name=x-stream]"), "lines")
    enter(dialog.locator("[name=name]"), "offered")
    enter(kind, "quorum")
    expect(length).to_have_value("7")
    enter(kind, "stream-group")
    dialog.get_by_role("button", name="Declare").click()
    shows(page, "Group offered")
    assert broker.api("GET", "/api/queues/%2F/offered")["arguments"] == {
        "x-queue-type": "stream-group",
        "x-stream": "lines",
    }


def test_a_form_says_which_policies_would_apply(visit: Visit, broker: Broker) -> None:
    broker.api("PUT", "/api/vhosts/ruled", {})
    for kind, definition in (("policies", {"max-length": 9}), ("operator-policies", {"max-length": 5})):
        rule = {"pattern": "^a/", "definition": definition, "apply-to": "quorum_queues"}
        broker.api("PUT", f"/api/{kind}/ruled/short", rule)
    spare = {"pattern": "", "definition": {"alternate-exchange": "b"}, "apply-to": "exchanges"}
    broker.api("PUT", "/api/policies/ruled/spare", spare)
    page = visit.log_in()
    visit.go("queues")
    page.get_by_role("button", name="Declare a queue").click()
    dialog = page.get_by_role("dialog")
    says = dialog.locator(".applying")
    enter(dialog.locator("[name=vhost]"), "ruled")
    enter(dialog.locator("[name=name]"), "a/b é?")
    expect(says).to_have_text("What would apply: policy short and operator policy short (max-length=5).")
    enter(dialog.locator("[name=type]"), "classic")
    expect(says).to_have_text("No policy would apply.")
    enter(dialog.locator("[name=vhost]"), "/")
    expect(says).to_have_text("No policy would apply.")
    dialog.get_by_role("button", name="Cancel").click()
    visit.go("exchanges")
    page.get_by_role("button", name="Declare an exchange").click()
    enter(dialog.locator("[name=vhost]"), "ruled")
    enter(dialog.locator("[name=name]"), "any")
    expect(says).to_have_text("What would apply: policy spare (alternate-exchange=b).")
    broker.api("DELETE", "/api/vhosts/ruled")


def test_a_stream_is_read(visit: Visit, broker: Broker) -> None:
    declare(broker, "log", **{"x-queue-type": "stream"})
    publish(broker, "log", *(f"line {number}" for number in range(20)))
    page = visit.log_in()
    visit.go("queue", "/", "log")
    messages = page.locator(".message")

    def read(offset: str, count: int, text: str = "") -> None:
        enter(page.locator("[name=offset]"), offset)
        enter(page.locator("[name=count]"), str(count))
        enter(page.locator("[name=text]"), text)
        page.get_by_role("button", name="Show messages").click()

    read("7", 3)
    expect(messages.locator("pre:not(.properties)")).to_have_text(["line 7", "line 8", "line 9"])
    expect(messages.first).to_contain_text("offset 7")
    read("first", 2)
    expect(messages.locator("pre:not(.properties)")).to_have_text(["line 0", "line 1"])
    read("1h", 1)
    expect(messages.locator("pre:not(.properties)")).to_have_text(["line 0"])
    read("first", 5, "LINE 1")
    expect(page.get_by_text("11 of 20 messages match.")).to_be_visible()
    expect(messages).to_have_count(5)
    page.get_by_role("button", name="Hide").click()
    expect(messages).to_have_count(0)
    # Nothing has changed in the stream.
    assert broker.api("GET", "/api/queues/%2F/log")["messages"] == 20


def test_a_message_that_waits_is_cancelled(visit: Visit, broker: Broker) -> None:
    path = declare(broker, "later", **{"x-delayed": True})
    for name in ("ann", "ben"):
        properties = {"message_id": f"wake {name}", "headers": {"x-delay": 3_600_000}}
        body = {
            "routing_key": "later",
            "payload": name,
            "payload_encoding": "string",
            "properties": properties,
        }
        broker.api("POST", "/api/exchanges/%2F/amq.default/publish", body)
    page = visit.log_in()
    visit.go("queue", "/", "later")
    messages = page.locator("article.message")
    show, cancel = (page.get_by_role("button", name=name) for name in ("Show messages", "Cancel delivery"))
    show.click()
    expect(page.get_by_text("0 messages.")).to_be_visible()
    enter(page.locator("[name=waiting]"), True)
    show.click()
    expect(messages).to_have_count(2)
    cancel.first.click()
    page.get_by_role("button", name="Keep it").click()
    expect(messages).to_have_count(2)
    cancel.first.click()
    page.locator("dialog").get_by_role("button", name="Cancel delivery").click()
    expect(messages).to_have_count(1)
    expect(messages.first).to_contain_text("ben")
    assert broker.api("GET", path)["messages"] == 1


def test_a_group_is_reset(visit: Visit, broker: Broker) -> None:
    declare(broker, "read", **{"x-queue-type": "stream"})
    declare(broker, "readers", **{"x-queue-type": "stream-group", "x-stream": "read"})
    publish(broker, "read", "one", "two", "three")
    page = visit.log_in()
    visit.go("group", "/", "readers")

    def place() -> int:
        (partition,) = broker.api("GET", "/api/groups/%2F/readers")["partition_details"]
        return int(partition["committed_offset"])

    for to, offset in (("first", 0), ("2", 2), ("next", 3), ("-1h", 0)):
        visit.send("Reset", to=to)
        expect(page.get_by_text(re.compile(rf"^read: \d+ to {offset}$")).last).to_be_visible()
        expect(row(page, "read").locator("[data-label=Committed]")).to_have_text(str(offset))
        assert place() == offset
    page.get_by_role("button", name="Reset").click()
    dialog = page.get_by_role("dialog")
    enter(dialog.locator("[name=to]"), "somewhere")
    dialog.get_by_role("button", name="Reset").click()
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    assert place() == 0


# -- exchanges -----------------------------------------------------------------------------------------------


def test_an_exchange_is_declared_bound_published_to_unbound_and_deleted(visit: Visit, broker: Broker) -> None:
    declare(broker, "orders")
    page = visit.log_in()
    visit.go("exchanges")
    arguments = {"alternate-exchange": "amq.fanout"}
    visit.send("Declare an exchange", "Declare", name="shop", type="topic", durable=False, **arguments)
    shows(page, "Exchange shop")
    declared = broker.api("GET", "/api/exchanges/%2F/shop")
    assert [declared[name] for name in ("type", "durable", "arguments")] == [
        "topic",
        False,
        arguments,
    ]

    note = {"header-name": "note", "header-type": "number", "header-value": "1"}
    visit.send("Bind", destination="orders", routing_key="order.*", **note)
    visit.send("Bind", kind="e", destination="amq.direct", routing_key="#")
    bindings = page.get_by_role("table").last
    expect(row(bindings, "orders", "order.*", "note=1")).to_be_visible()
    expect(row(bindings, "amq.direct", "#")).to_be_visible()
    expect(page.locator(".graph .node.queue")).to_contain_text(["orders"])
    expect(page.locator(".graph .node.exchange")).to_have_count(3)
    path = "/api/exchanges/%2F/shop/bindings/source"
    bound = {each["destination"]: each for each in broker.api("GET", path)}
    assert bound["orders"]["arguments"] == {"note": 1} and bound["orders"]["routing_key"] == "order.*"
    assert bound["amq.direct"]["destination_type"] == "exchange"

    properties = '{"headers": {"kind": "a"}, "content_type": "text/plain"}'
    visit.send("Publish", routing_key="order.new", payload="dHdvIHRlYXM=", base64=True, properties=properties)
    expect(page.get_by_text("The message was published.")).to_be_visible()
    taken = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    (message,) = broker.api("POST", "/api/queues/%2F/orders/get", taken)
    assert (message["payload"], message["exchange"]) == ("two teas", "shop")
    assert message["properties"] == {
        "headers": {"kind": "a"},
        "content_type": "text/plain",
        "delivery_mode": 2,
    }

    for destination in ("orders", "amq.direct"):
        visit.send("Unbind", within=row(bindings, destination))
        expect(row(bindings, destination)).to_have_count(0)
    expect(page.get_by_text("Nothing is bound to it.")).to_be_visible()
    expect(page.locator(".graph .node.queue")).to_have_count(0)
    assert broker.api("GET", path) == []

    page.get_by_role("button", name="Publish", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.get_by_role("alert")).to_have_text(
        "No queue got the message: nothing is bound with this key."
    )
    page.keyboard.press("Escape")

    visit.send("Delete")
    shows(page, "Exchanges")
    expect(row(page, "shop")).to_have_count(0)
    assert status(broker, "/api/exchanges/%2F/shop") == NOT_FOUND


# -- connections ---------------------------------------------------------------------------------------------


def header(dialog: Any, number: int, name: str, kind: str, value: str | None = None) -> None:
    """Enter a header into the line of this number, which is added unless it is there."""
    line = dialog.locator(".named-value").nth(number)
    if not line.count():
        dialog.get_by_role("button", name="Add a name").click()
    enter(line.locator("[name=header-name]"), name)
    enter(line.locator("[name=header-type]"), kind)
    if value is not None:
        enter(line.locator("[name=header-value]"), value)


def binding_form(visit: Visit, broker: Broker, exchange: str, x_match: str) -> Any:
    """Open the form that binds a queue to a new headers exchange, and fill in all but the headers."""
    declare(broker, "orders")
    broker.api("PUT", f"/api/exchanges/%2F/{exchange}", {"type": "headers"})
    page = visit.log_in()
    visit.go("exchange", "/", exchange)
    page.get_by_role("button", name="Bind", exact=True).click()
    dialog = page.get_by_role("dialog")
    enter(dialog.locator("[name=destination]"), "orders")
    enter(dialog.locator("[name=x-match]"), x_match)
    return dialog


def test_headers_of_a_binding_have_types(visit: Visit, broker: Broker) -> None:
    dialog = binding_form(visit, broker, "typed", "any-with-x")
    header(dialog, 0, "tenant", "text", "7")
    header(dialog, 1, "tries", "number", "7")
    header(dialog, 2, "share", "number", "-0.5")
    header(dialog, 3, "paid", "flag", "false")
    header(dialog, 4, "x-seen", "present")
    header(dialog, 5, "parts", "json", "[1, null]")
    header(dialog, 6, "gone", "text", "1")
    dialog.locator(".named-value").nth(6).get_by_role("button", name="Remove").click()
    expect(dialog.locator(".named-value").nth(4).locator("[name=header-value]")).to_have_count(0)
    dialog.get_by_role("button", name="Bind").click()
    expect(dialog).to_have_count(0)
    (told,) = broker.api("GET", "/api/exchanges/%2F/typed/bindings/source")
    assert told["arguments"] == {
        "x-match": "any-with-x",
        "tenant": "7",
        "tries": 7,
        "share": -0.5,
        "paid": False,
        "x-seen": None,
        "parts": [1, None],
    }
    properties = {"headers": {"x-seen": "whenever"}}
    asked = {"routing_key": "", "payload": "a", "payload_encoding": "string", "properties": properties}
    assert broker.api("POST", "/api/exchanges/%2F/typed/publish", asked) == {"routed": True}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([("tries", "number", "many")], "tries: this is no number"),
        ([("tries", "number", "9007199254740993")], "tries: this number has more digits"),
        ([("parts", "json", "[1")], "parts: this is no JSON"),
        ([("", "text", "7")], "a value has no name"),
        ([("a", "text", "7"), ("a", "text", "8")], "a is there twice"),
        ([("x-match", "text", "all")], "x-match is there twice"),
    ],
)
def test_a_header_that_is_refused_stays_in_the_form(
    visit: Visit, broker: Broker, lines: list[tuple[str, str, str]], reason: str
) -> None:
    dialog = binding_form(visit, broker, "refusing", "any")
    for number, line in enumerate(lines):
        header(dialog, number, *line)
    dialog.get_by_role("button", name="Bind").click()
    expect(dialog.get_by_role("alert")).to_contain_text(reason)
    expect(dialog.locator("[name=header-value]").last).to_have_value(lines[-1][2])
    assert broker.api("GET", "/api/exchanges/%2F/refusing/bindings/source") == []


def test_a_binding_has_the_arguments_of_its_exchange(visit: Visit, broker: Broker) -> None:
    delayed = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "headers"}}
    broker.api("PUT", "/api/exchanges/%2F/later", delayed)
    page = visit.log_in()
    for exchange, names in {
        "amq.headers": {"x-match"},
        "later": {"x-match"},
        "amq.direct": {"x-stream-partition-order"},
        "amq.topic": set(),
    }.items():
        visit.go("exchange", "/", exchange)
        shows(page, f"Exchange {exchange}")
        page.get_by_role("button", name="Bind", exact=True).click()
        dialog = page.get_by_role("dialog")
        unfold(dialog)
        fields = dialog.locator(".argument-fields :is(input, select)")
        expect(fields).to_have_count(len(names))
        assert {field.get_attribute("name") for field in fields.all()} == names
        page.keyboard.press("Escape")


def test_a_connection_is_closed(visit: Visit, broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    page = visit.log_in()
    visit.go("connections")
    page.get_by_role("table").get_by_role("link", name="127.0.0.1:").click()
    visit.send("Close", reason="for repairs")
    expect(page.get_by_text("The connection is being closed.")).to_be_visible()
    shows(page, "Connections")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320.*for repairs"):
        connection.process_data_events(None)
    expect(row(page, "127.0.0.1:")).to_have_count(0)
    assert broker.api("GET", "/api/connections") == []


# -- users ---------------------------------------------------------------------------------------------------


def test_a_user_is_changed_and_deleted(visit: Visit, broker: Broker) -> None:
    broker.api("PUT", "/api/users/eve", {"password": "old", "tags": "management"})

    def password_hash() -> str:
        users = broker.api("GET", "/api/definitions")["users"]
        return str(next(user["password_hash"] for user in users if user["name"] == "eve"))

    before = password_hash()
    page = visit.log_in()
    visit.go("user", "eve")
    facts = page.locator(".facts")
    visit.send("Change", tags="monitoring,policymaker")
    expect(facts).to_contain_text("monitoring, policymaker")
    assert broker.api("GET", "/api/users/eve")["tags"] == ["monitoring", "policymaker"]
    assert password_hash() == before
    visit.send("Change", password="new")
    expect(page.get_by_text("The user was changed.").last).to_be_visible()
    visit.log_out()
    visit.log_in("eve", "new")
    shows(page, "Overview")
    visit.log_out()
    visit.log_in()
    visit.go("user", "eve")
    visit.send("Delete")
    shows(page, "Users")
    expect(row(page, "guest")).to_be_visible()
    expect(row(page, "eve")).to_have_count(0)
    assert status(broker, "/api/users/eve") == NOT_FOUND


def test_permissions_are_set_and_cleared(visit: Visit, broker: Broker) -> None:
    broker.api("PUT", "/api/users/tom", {"password": "secret", "tags": ""})
    page = visit.log_in()
    visit.go("user", "tom")
    tables = page.get_by_role("table")
    visit.send("Set permissions", "Set", configure="^$", write="^w", read="^r")
    expect(row(tables.first, "^$", "^w", "^r")).to_be_visible()
    visit.send("Set topic permissions", "Set", exchange="amq.topic", write=r"^a\.", read=r"^b\.")
    expect(row(tables.last, "amq.topic", r"^a\.", r"^b\.")).to_be_visible()
    (everywhere,) = broker.api("GET", "/api/users/tom/permissions")
    assert everywhere == {"user": "tom", "vhost": "/", "configure": "^$", "write": "^w", "read": "^r"}
    (of_topics,) = broker.api("GET", "/api/users/tom/topic-permissions")
    assert of_topics == {
        "user": "tom", "vhost": "/", "exchange": "amq.topic", "write": r"^a\.", "read": r"^b\.",
    }  # fmt: skip
    visit.send("Clear", within=tables.last)
    expect(page.get_by_text("All routing keys are permitted.")).to_be_visible()
    assert broker.api("GET", "/api/users/tom/topic-permissions") == []
    assert broker.api("GET", "/api/users/tom/permissions") == [everywhere]
    visit.send("Clear", within=tables.first)
    expect(page.get_by_text("The user may open no virtual host.")).to_be_visible()
    assert broker.api("GET", "/api/users/tom/permissions") == []


# -- virtual hosts and policies ------------------------------------------------------------------------------


def test_a_virtual_host_is_added_and_deleted(visit: Visit, broker: Broker) -> None:
    page = visit.log_in()
    visit.go("vhosts")
    visit.send(
        "Add a virtual host", "Add", name="of tests", description="try <it>", default_queue_type="quorum"
    )
    expect(row(page, "of tests", "try <it>")).to_contain_text("quorum")
    switch = page.get_by_label("Virtual host", exact=True)
    expect(switch.get_by_role("option", name="of tests")).to_have_count(1)
    found = broker.api("GET", "/api/vhosts/of%20tests")
    assert (found["description"], found["default_queue_type"]) == ("try <it>", "quorum")
    visit.send("Delete", within=row(page, "of tests"))
    expect(row(page, "of tests")).to_have_count(0)
    expect(switch.get_by_role("option", name="of tests")).to_have_count(0)
    assert status(broker, "/api/vhosts/of%20tests") == NOT_FOUND


@pytest.mark.parametrize("title", ["Policies", "Operator policies"])
def test_a_policy_is_changed_and_deleted(visit: Visit, broker: Broker, title: str) -> None:
    path = f"/api/{title.lower().replace(' ', '-')}/%2F/lengths"
    declare(broker, "measured")
    page = visit.log_in()
    visit.go("policies")
    section = page.locator("section").filter(has=page.get_by_role("heading", name=title, exact=True))
    visit.send("Add", "Set", within=section, name="lengths", pattern="^measured$", **{"max-length": "7"})
    expect(row(section, "lengths")).to_contain_text("max-length=7")
    visit.send(
        "Change",
        "Set",
        within=section,
        priority="3",
        **{"apply-to": "classic_queues", "max-length": "8"},
    )
    expect(row(section, "lengths", "max-length=8")).to_contain_text("classic_queues")
    changed = broker.api("GET", path)
    assert changed["definition"] == {"max-length": 8} and changed["apply-to"] == "classic_queues"
    assert (changed["priority"], changed["pattern"]) == (3, "^measured$")
    effective = broker.api("GET", "/api/queues/%2F/measured")["effective_policy_definition"]
    assert effective == {"max-length": 8}
    visit.send("Delete", within=section)
    expect(section.get_by_text("None.")).to_be_visible()
    assert status(broker, path) == NOT_FOUND
    assert not broker.api("GET", "/api/queues/%2F/measured")["effective_policy_definition"]


def test_dead_letters_are_redriven(visit: Visit, broker: Broker) -> None:
    declare(broker, "dead")
    declare(broker, "alive", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    publish(broker, "alive", "a", "b")
    rejected = {"count": 2, "ackmode": "reject_requeue_false", "encoding": "auto"}
    broker.api("POST", "/api/queues/%2F/alive/get", rejected)
    publish(broker, "dead", "other")
    page = visit.log_in()
    visit.go("queue", "/", "dead")
    visit.send("Redrive")
    expect(page.get_by_text("2 messages went back, 1 stay.")).to_be_visible()
    told = broker.api("GET", "/api/queues/%2F/alive")
    assert told["messages"] == 2
