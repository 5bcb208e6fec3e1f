"""A browser in which a user has opened the page, and objects made for it by the API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from amqp_server.testing import Broker
from conformance_tests.patience import PATIENCE_S

sync_api: Any = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
expect.set_options(timeout=PATIENCE_S * 1000)

WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


class Visit:
    """A new browser profile, and its complaints."""

    def __init__(self, chromium: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = chromium.new_context(**{"viewport": WIDE, **options})
        self.context.set_default_timeout(PATIENCE_S * 1000)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        #: Requests of the page to other hosts than this node.
        self.strangers: list[str] = []
        #: Requests of the page that were refused, or got no answer.
        self.failed: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", self._asked)
        self.page.on("response", self._told)

    def _said(self, message: Any) -> None:
        # If the API refuses a request, that is no fault of the page.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url, "blob:")):
            self.strangers.append(request.url)

    def _told(self, response: Any) -> None:
        if not response.ok:
            self.failed.append(f"{response.status} {response.url}")

    def log_in(self, user: str = "guest", password: str = "guest") -> Any:
        self.page.goto(f"{self.url}/")
        self.page.get_by_label("User").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()
        return self.page

    def log_out(self) -> None:
        self.page.get_by_role("button", name="Log out").click()
        # A user who left the page before the node has answered would stay logged in.
        expect(self.page.get_by_label("Password")).to_be_visible()

    def go(self, *parts: str) -> Any:
        self.page.goto(f"{self.url}/#/" + "/".join(quote(part, safe="") for part in parts))
        return self.page

    def send(self, opener: str, label: str = "", /, within: Any = None, **values: str | bool) -> None:
        """Press a button, answer its dialog, and see the answer accepted; values are those of the fields of
        these names.

        `label` is the label of the answer's button, unless it is the same. `within`: the part of the page
        that has the button.
        """
        place = self.page if within is None else within
        place.get_by_role("button", name=opener, exact=True).click()
        dialog = self.page.get_by_role("dialog")
        unfold(dialog)
        for name, value in values.items():
            enter(dialog.locator(f"[name={name}]"), value)
        dialog.get_by_role("button", name=label or opener, exact=True).click()
        expect(dialog).to_have_count(0)


def declare(broker: Broker, queue: str, **arguments: Any) -> str:
    path = f"/api/queues/%2F/{quote(queue, safe='')}"
    broker.api("PUT", path, {"arguments": arguments})
    return path


def publish(broker: Broker, queue: str, *payloads: str) -> None:
    for payload in payloads:
        body = {"routing_key": queue, "payload": payload, "payload_encoding": "string", "properties": {}}
        assert broker.api("POST", "/api/exchanges/%2F/amq.default/publish", body) == {"routed": True}


def unfold(dialog: Any) -> None:
    """Show the fields of a form that are for few users."""
    dialog.get_by_role("button").first.wait_for()
    for summary in dialog.locator("details:not([open]) > summary").all():
        summary.click()


def enter(field: Any, value: str | bool) -> None:
    if isinstance(value, bool):
        field.set_checked(value)
    elif field.evaluate("field => field.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)
