"""The contents of the pages, and how a user navigates them."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pika
import pytest

from amqp_server.testing import Broker, start

from .visit import NARROW, WIDE, Visit, declare, expect, publish

#: Names that a client may give to a queue.
HOSTILE = [
    "<script>window.ran = 1</script>",
    "\"><img src=x onerror='window.ran=1'>",
    "'quotes' \"double\" & %2F/ ?# ünïcode ☃ \u202ertl",
    "{{7*7}} ${7*7} javascript:window.ran=1",
    "two\r\nlines\nor\n\nmore",
    "\ttab, bell\x07, escape\x1b[31m, delete\x7f, next line\x85, separators\u2028\u2029, mark\ufeff",
]
PAGES = [
    "Overview",
    "Queues",
    "Exchanges",
    "Connections",
    "Channels",
    "Consumers",
    "Streams",
    "Nodes",
    "Users",
    "Virtual hosts",
    "Policies",
    "Definitions",
]


def test_a_login_leaves_no_password_behind(visit: Visit) -> None:
    page = visit.log_in(password="wrong")
    expect(page.get_by_role("alert")).to_have_text("Login failed")
    page.get_by_label("Password").fill("guest")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    (cookie,) = visit.context.cookies(f"{visit.url}/api/")
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["expires"] == -1
    seen = page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])")
    assert "guest" not in seen and cookie["value"] not in seen and json.loads(seen)[0] == ""
    # A reload keeps the session, and a logout ends it.
    page.reload()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    visit.log_out()
    page.reload()
    expect(page.get_by_label("Password")).to_be_visible()


@pytest.mark.parametrize(
    "visit",
    [
        {"color_scheme": "light", "viewport": WIDE},
        {"color_scheme": "dark", "viewport": NARROW, "has_touch": True},
    ],
    indirect=True,
    ids=["light and wide", "dark and narrow"],
)
def test_each_page(visit: Visit, broker: Broker) -> None:
    declare(broker, "q")
    page = visit.log_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    # The page that is open already comes last: its heading would not show that a new page has been loaded.
    for title in [*PAGES[1:], PAGES[0]]:
        link = page.get_by_role("navigation").get_by_role("link", name=title, exact=True)
        if not link.is_visible():
            page.get_by_role("button", name="Menu").click()
        link.click()
        expect(page.get_by_role("heading", name=title, exact=True, level=1)).to_be_visible()
        expect(page.get_by_role("main")).not_to_contain_text("undefined")
        # Tables scroll within themselves; the page does not.
        beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert beyond <= 0, title
    expect(page.locator(".trouble").first).to_be_hidden()
    assert visit.failed == []


@pytest.mark.parametrize("visit", [{"viewport": NARROW}], ids=["narrow"], indirect=True)
def test_the_menu_closes_when_a_page_is_chosen_even_the_one_that_is_shown(visit: Visit) -> None:
    page = visit.log_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    toggle, links = page.get_by_role("button", name="Menu"), page.get_by_role("navigation")
    for title in ["Queues", "Queues", "Overview", "Overview"]:
        expect(toggle).to_have_attribute("aria-expanded", "false")
        toggle.click()
        expect(toggle).to_have_attribute("aria-expanded", "true")
        links.get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        expect(links).to_be_hidden()


@pytest.mark.parametrize("visit", [{}, {"viewport": NARROW}], ids=["wide", "narrow"], indirect=True)
def test_the_page_of_one_thing(visit: Visit, broker: Broker) -> None:
    declare(broker, "q")
    properties = {"connection_name": "till <7>", "capabilities": {"basic.nack": True, "other": False}}
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, client_properties=properties)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.basic_consume("q", print, consumer_tag="the-tag")
    page = visit.log_in()
    visit.go("connections").get_by_role("link", name="till <7>").or_(
        page.get_by_role("link", name="127.0.0.1:")
    ).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Connection 127.0.0.1")
    facts = page.locator(".facts")
    expect(facts).to_contain_text("connection_name=till <7>")
    expect(facts).to_contain_text("basic.nack")
    expect(facts).not_to_contain_text("true")
    for each in page.locator(".facts .wide").all():
        assert each.bounding_box()["width"] > page.locator(".facts").bounding_box()["width"] * 0.8
    page.get_by_role("table").get_by_role("link", name="(1)").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("(1)")
    expect(page.get_by_role("table")).to_contain_text("the-tag")
    for parts in (["queue", "/", "q"], ["exchange", "/", "amq.topic"], ["user", "guest"]):
        visit.go(*parts)
        expect(page.get_by_role("heading", level=1)).to_contain_text(parts[-1])
        expect(page.get_by_role("main")).not_to_contain_text("undefined")
        beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert beyond <= 0, parts
    connection.close()
    assert visit.failed == []


def test_lists_fit_a_wide_screen(visit: Visit, broker: Broker) -> None:
    """Columns that are equal in all rows are left out, and names do not end a line within their arrow."""
    declare(broker, "q")
    client = {"connection_name": "of a service that has a long name"}
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, client_properties=client)
    connection = pika.BlockingConnection(parameters)
    connection.channel().basic_consume("q", print)
    page = visit.log_in()

    def heads() -> list[str]:
        return [head.strip(" ↑↓") for head in page.locator("th").all_inner_texts()]

    for list_ in ("queues", "connections", "channels", "consumers"):
        visit.go(list_)
        expect(page.locator("tbody tr").first).to_be_visible()
        assert not {"Virtual host", "Node"} & set(heads())
        beyond = page.locator(".scroll").evaluate("list => list.scrollWidth - list.clientWidth")
        assert beyond <= 0, list_
        for arrow in page.locator(".arrow").all():
            assert arrow.evaluate("arrow => arrow.getClientRects().length") == 1
    assert page.locator(".arrow").count() > 0
    with broker.vhost():
        page.reload()
        expect(page.locator("th").filter(has_text="Virtual host")).to_be_visible()
        page.get_by_label("Virtual host").select_option("/")
        expect(page.locator("th").filter(has_text="Virtual host")).to_have_count(0)
    connection.close()


def test_labels_of_a_chart_are_whole(visit: Visit) -> None:
    page = visit.log_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.evaluate(
        """async () => {
            const {Chart} = await import(new URL("page/chart.js", document.baseURI));
            const chart = new Chart("Wide", () => "1,023 MiB/s");
            document.querySelector("main").append(chart.element);
            chart.draw();
        }"""
    )
    chart = page.locator("figure", has_text="Wide").locator("svg")
    labels = chart.locator(".tick").all()
    assert len(labels) == 3
    for label in labels:
        assert label.bounding_box()["x"] >= chart.bounding_box()["x"]


def test_the_theme_is_chosen(visit: Visit) -> None:
    page = visit.log_in()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.reload()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.evaluate(ground) == dark


def exactly(text: str) -> re.Pattern[str]:
    """Match this text exactly, with its line breaks; playwright ignores line breaks."""
    return re.compile("^" + "".join(f"\\u{ord(each):04x}" for each in text) + "$")


def test_names_are_texts(visit: Visit, broker: Broker) -> None:
    # As with RabbitMQ, names of queues lose their line ends. Routing keys and payloads keep theirs.
    queues = {name: name.replace("\r", "").replace("\n", "") for name in HOSTILE}
    for name, queue in queues.items():
        declare(broker, name)
        publish(broker, queue, f"payload {name}")
        binding = {"routing_key": name, "arguments": {}}
        broker.api("POST", f"/api/bindings/%2F/e/amq.topic/q/{quote(queue, safe='')}", binding)
    page = visit.log_in()
    visit.go("queues")
    links = page.get_by_role("table").locator("a.name")
    for queue in queues.values():
        found = links.filter(has_text=exactly(queue))
        expect(found).to_have_attribute("href", "#/queue/%2F/" + quote(queue, safe="!'()*"))
    for name, queue in queues.items():
        visit.go("queue", "/", queue)
        expect(page.locator("h1 .name")).to_have_text(exactly(queue))
        page.get_by_role("button", name="Show messages").click()
        expect(page.locator(".message pre").last).to_have_text(exactly(f"payload {name}"))
    visit.go("exchange", "/", "amq.topic")
    expect(page.locator(".graph .node.queue")).to_have_count(len(HOSTILE))
    page.get_by_label("Routing key").fill(HOSTILE[0])
    page.get_by_role("button", name="Explain").click()
    expect(page.locator(".answer")).to_contain_text("It would go to one queue")
    expect(page.locator(".answer")).to_contain_text(HOSTILE[0])
    expect(page.locator(".graph .edge.hit")).to_have_count(1)
    expect(page.locator(".graph .edge-label.hit")).to_have_text([re.compile(".+")])
    # Each binding can be told from the others, and can be removed without the others.
    for name, queue in queues.items():
        row = page.get_by_role("row").filter(has=page.get_by_role("link").filter(has_text=exactly(queue)))
        expect(row.locator("[data-label='Routing key']")).to_have_text(exactly(name))
        visit.send("Unbind", within=row)
        expect(row).to_have_count(0)
    assert broker.api("GET", "/api/exchanges/%2F/amq.topic/bindings/source") == []
    for queue in queues.values():
        visit.go("queue", "/", queue)
        visit.send("Delete")
        expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    assert not {each["name"] for each in broker.api("GET", "/api/queues")} & {*queues.values()}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_client_says_of_itself_is_text(visit: Visit, broker: Broker, name: str) -> None:
    declare(broker, "q")
    client = {"connection_name": name, "product": name}
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, client_properties=client)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().basic_consume("q", print, consumer_tag=name)
        page = visit.log_in()
        visit.go("consumers")
        expect(page.locator("tbody [data-label=Tag] .name")).to_have_text(exactly(name))
        visit.go("connections")
        page.get_by_role("table").locator("tbody a").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Connection 127.0.0.1")
        expect(page.locator(".facts dd").first).to_have_text(exactly(name))


def test_messages_are_published_found_moved_and_purged(visit: Visit, broker: Broker) -> None:
    declare(broker, "old")
    declare(broker, "new")
    publish(broker, "old", "first", "second needle", "third")
    page = visit.log_in()
    visit.go("queue", "/", "old")
    page.get_by_role("button", name="Publish", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Payload", exact=True).fill("fourth")
    dialog.get_by_label("Properties").fill("not JSON")
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.get_by_role("alert")).to_have_text("Properties: this is no JSON")
    dialog.get_by_label("Properties").fill('{"headers": {"kind": "a"}}')
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog).to_have_count(0)
    page.get_by_label("Search for").fill("NEEDLE")
    page.get_by_role("button", name="Show messages").click()
    expect(page.locator(".message")).to_have_count(1)
    expect(page.locator(".message")).to_contain_text("second needle")
    page.get_by_role("button", name="Move").click()
    dialog.get_by_label("To the queue").fill("new")
    dialog.get_by_label("Messages").fill("3")
    dialog.get_by_role("button", name="Move").click()
    expect(page.get_by_text("3 messages were moved.")).to_be_visible()
    assert [broker.api("GET", f"/api/queues/%2F/{name}")["messages"] for name in ("old", "new")] == [1, 3]
    page.get_by_role("button", name="Copy").click()
    dialog.get_by_label("To the queue").fill("old")
    dialog.get_by_label("Messages").fill("2")
    dialog.get_by_role("button", name="Copy").click()
    expect(dialog.get_by_role("alert")).to_contain_text("the queue itself")
    dialog.get_by_label("To the queue").fill("new")
    dialog.get_by_label("payload contains").fill("fourth")
    dialog.get_by_role("button", name="Copy").click()
    expect(page.get_by_text("1 messages were copied.")).to_be_visible()
    page.get_by_role("button", name="Move").click()
    dialog.get_by_label("To the queue").fill("new")
    dialog.get_by_label("with the header").fill("kind=b")
    dialog.get_by_role("button", name="Move").click()
    expect(page.get_by_text("0 messages were moved.")).to_be_visible()
    page.get_by_role("button", name="Purge some").click()
    dialog.get_by_role("button", name="Purge").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Fill in a condition")
    dialog.get_by_label("routing key matches").fill("^nothing$")
    dialog.get_by_role("button", name="Purge").click()
    expect(page.get_by_text("0 messages were purged.")).to_be_visible()
    assert broker.api("GET", "/api/queues/%2F/old")["messages"] == 1
    page.get_by_role("button", name="Purge", exact=True).click()
    # Escape means no.
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert broker.api("GET", "/api/queues/%2F/old")["messages"] == 1
    page.get_by_role("button", name="Purge", exact=True).click()
    dialog.get_by_role("button", name="Purge").click()
    expect(page.get_by_text("The queue was purged.")).to_be_visible()
    assert broker.api("GET", "/api/queues/%2F/old")["messages"] == 0
    page.get_by_role("button", name="Pause deliveries").click()
    expect(page.get_by_role("button", name="Resume deliveries")).to_be_visible()
    page.get_by_role("button", name="Pause publishes").click()
    expect(page.get_by_text("deliveries, publishes")).to_be_visible()
    page.get_by_role("button", name="Resume deliveries").click()
    page.get_by_role("button", name="Protect", exact=True).click()
    expect(page.get_by_text("from deletion", exact=True)).to_be_visible()
    row = broker.api("GET", "/api/queues/%2F/old")
    assert [row["deliveries_paused"], row["publishes_paused"]] == [False, True]
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Cannot delete protected queue 'old'")).to_be_visible()
    page.get_by_role("button", name="Lift protection").click()
    expect(page.get_by_role("button", name="Protect", exact=True)).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    assert "old" not in [each["name"] for each in broker.api("GET", "/api/queues")]


def test_queues_are_paged_sorted_and_filtered_by_the_node(visit: Visit, broker: Broker) -> None:
    with broker.vhost("many") as vhost:
        for number in range(120):
            vhost.api("PUT", f"queues/q{number:03}", {"arguments": {}})
        page = visit.log_in()
        page.get_by_label("Virtual host").select_option(vhost.name)
        visit.go("queues")
        rows = page.get_by_role("table").locator("tbody tr")
        expect(rows).to_have_count(50)
        expect(page.locator(".counted")).to_have_text("120, page 1 of 3")
        expect(rows.first).to_contain_text("q000")
        page.get_by_role("button", name="Name", exact=True).click()
        expect(rows.first).to_contain_text("q119")
        page.get_by_role("button", name="Next").click()
        expect(page.locator(".counted")).to_have_text("120, page 2 of 3")
        page.get_by_label("Filter by name").fill("q01")
        expect(rows).to_have_count(10)
        # The address holds the whole state.
        page.reload()
        expect(page.locator(".counted")).to_have_text("10 of 120, page 1 of 1")
        page.get_by_label("Filter by name").fill("q(")
        page.get_by_label("regular expression").check()
        expect(page.locator(".trouble").first).to_contain_text("Not up to date")


def test_users_and_policies(visit: Visit, broker: Broker) -> None:
    page = visit.log_in()
    visit.go("users")
    page.get_by_role("button", name="Add a user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("ann <b>")
    dialog.get_by_label("Password").fill("secret")
    dialog.get_by_label("Tags").fill("management")
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("heading", name="ann <b>")).to_be_visible()
    page.get_by_role("button", name="Set permissions").click()
    dialog.get_by_role("button", name="Set").click()
    expect(page.get_by_text("The permissions were set.")).to_be_visible()
    visit.go("policies")
    page.get_by_role("button", name="Add").first.click()
    dialog.get_by_label("Name", exact=True).fill("short")
    dialog.get_by_label("Pattern").fill("^short")
    dialog.get_by_text("Definition").click()
    dialog.locator("[name=max-length]").fill("1")
    dialog.get_by_role("button", name="Set").click()
    expect(page.get_by_role("table").first).to_contain_text("max-length=1")
    visit.log_out()
    page = visit.log_in("ann <b>", "secret")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    # The page does not link to pages of administrators.
    assert page.get_by_role("navigation").get_by_role("link", name="Users").count() == 0
    visit.go("users")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    # A new password ends the session, and the page says so.
    broker.api("PUT", f"/api/users/{quote('ann <b>')}", {"password": "other", "tags": "management"})
    visit.go("queues")
    expect(page.get_by_role("alert").first).to_have_text("The login has ended. Log in again.")


def test_definitions_down_and_up(visit: Visit, broker: Broker) -> None:
    declare(broker, "defined", note=9_007_199_254_740_993)
    page = visit.log_in()
    visit.go("definitions")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download").click()
    text = downloading.value.path().read_text()
    # A number that scripts cannot represent.
    assert '"note":9007199254740993' in text
    broker.api("DELETE", "/api/queues/%2F/defined")
    file = {"name": "definitions.json", "mimeType": "application/json", "buffer": text.encode()}
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Import").click()
    page.get_by_role("dialog").get_by_role("button", name="Import").click()
    expect(page.get_by_text("The definitions were imported.")).to_be_visible()
    assert broker.api("GET", "/api/queues/%2F/defined")["arguments"]["note"] == 9_007_199_254_740_993


def test_by_keyboard(visit: Visit) -> None:
    page = visit.page
    page.goto(f"{visit.url}/")
    expect(page.get_by_label("User")).to_be_focused()
    page.keyboard.type("guest")
    page.keyboard.press("Tab")
    page.keyboard.type("guest")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("navigation").get_by_role("link", name="Queues").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Declare a queue")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Declare a queue")).to_be_focused()


def test_what_is_not_there_or_not_permitted(visit: Visit, broker: Broker) -> None:
    declare(broker, "q")
    page = visit.log_in()
    visit.go("queue", "/", "nothing <b>")
    trouble = page.locator(".trouble").first
    expect(trouble).to_have_text("There is nothing of this name, or no more.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queue nothing <b>")
    # Nor are there any actions.
    expect(page.get_by_role("main").get_by_role("button")).to_have_count(0)
    visit.go("queue", "/", "q")
    expect(page.get_by_role("button", name="Purge", exact=True)).to_be_visible()
    expect(trouble).to_be_hidden()
    broker.api("DELETE", "/api/queues/%2F/q")
    expect(trouble).to_have_text("There is nothing of this name, or no more.")
    expect(page.get_by_role("main").get_by_role("button")).to_have_count(0)
    visit.go("wurst")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    visit.log_out()
    declare(broker, "q")
    broker.api("PUT", "/api/users/bob", {"password": "secret", "tags": "management"})
    visit.log_in("bob", "secret")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    visit.go("queue", "/", "q")
    expect(trouble).to_have_text("Your user may not see this.")
    broker.api("PUT", "/api/permissions/%2F/bob", {"configure": "", "write": "", "read": ""})
    page.reload()
    page.get_by_role("button", name="Show messages").click()
    expect(page.get_by_role("status").first).to_contain_text("access to queue 'q' in vhost '/' refused")


def test_a_chart_without_an_answer(visit: Visit) -> None:
    page = visit.page
    page.route("**/api/overview*", lambda route: route.abort())
    visit.log_in()
    expect(page.locator(".trouble").first).to_have_text("Not up to date: the node does not answer")
    page.locator("svg.chart").first.hover()
    page.get_by_role("heading", name="Overview").hover()
    expect(page.locator(".legend").first).to_have_text("")


def test_a_node_that_goes_and_comes_back(chromium: Any) -> None:
    with start() as broker:
        visit = Visit(chromium, broker.http_url)
        page = visit.log_in()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        broker.kill()
        expect(page.locator(".trouble").first).to_have_text("Not up to date: the node does not answer")
        broker.start()
        # The node does not know its earlier sessions any more.
        expect(page.get_by_role("alert").first).to_have_text("The login has ended. Log in again.")
        broker.kill()
        page.get_by_label("User").fill("guest")
        page.get_by_label("Password").fill("guest")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("the node does not answer")
        visit.context.close()
        assert visit.complaints == [] and visit.strangers == []


def test_another_page_cannot_frame_it(chromium: Any, broker: Broker) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.set_content(f'<iframe src="{broker.http_url}/"></iframe>')
    page.wait_for_load_state()
    framed = [frame for frame in page.frames if frame != page.main_frame]
    assert all(frame.get_by_label("Password").count() == 0 for frame in framed)
    context.close()


def test_groups_come_a_page_at_a_time(visit: Visit, broker: Broker) -> None:
    declare(broker, "many.stream", **{"x-queue-type": "stream"})
    group = {"x-queue-type": "stream-group", "x-stream": "many.stream"}
    for number in range(52):
        declare(broker, f"many.{number:02}", **group)
    visit.log_in()
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    page = visit.go("streams")
    table = page.get_by_role("table").first
    expect(table.get_by_role("link", name="many.49")).to_be_visible()
    expect(table.get_by_role("link", name="many.50")).to_have_count(0)
    page.get_by_role("button", name="Next").click()
    expect(table.get_by_role("link", name="many.51")).to_be_visible()
    expect(table.get_by_role("link", name="many.01")).to_have_count(0)
    page.get_by_label("Filter by name").fill("many.07")
    expect(table.get_by_role("link", name="many.07")).to_be_visible()
    expect(table.get_by_role("link", name="many.51")).to_have_count(0)
    of_groups = [url for url in asked if "/api/groups" in url]
    assert of_groups and all("page=" in url for url in of_groups)
    # No member has the partition: the page has nothing to link to.
    visit.go("group", "/", "many.07")
    partition = page.get_by_role("row").filter(has=page.get_by_role("link", name="many.stream"))
    expect(partition).to_be_visible()
    expect(partition.get_by_role("link")).to_have_count(1)
    expect(partition).not_to_contain_text("(empty name)")
    for number in range(52):
        broker.api("DELETE", f"/api/queues/%2F/many.{number:02}")
    broker.api("DELETE", "/api/queues/%2F/many.stream")


def test_an_alarm_is_on_every_page(visit: Visit, broker: Broker) -> None:
    page = visit.log_in()
    alarms = page.get_by_role("alert", name="Alarms")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(alarms).to_have_count(0)
    broker.api("PUT", "/api/nodes/n1/memory-limit", {"limit": "1MiB"})
    try:
        expect(alarms).to_contain_text("n1: memory alarm: ")
        expect(alarms).to_contain_text("Publishers are blocked.")
        for path in ("queues", "exchanges", "connections", "channels", "streams", "users", "definitions"):
            visit.go(path)
            expect(alarms).to_contain_text("memory alarm")
    finally:
        broker.api("PUT", "/api/nodes/n1/memory-limit", {"limit": "0.6"})
    expect(alarms).to_have_count(0)
