"""The scripts of the page import what they call of each other: without a browser nothing else tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import amqp_server.management

PAGE = Path(amqp_server.management.__file__).parent / "page"
SCRIPTS = sorted(PAGE.rglob("*.js"))
_EXPORTED = re.compile(r"^export (?:async )?(?:function|class|const)\*? (\w+)", re.MULTILINE)
_IMPORTED = re.compile(r"^import \{([^}]*)\}", re.MULTILINE)
#: Declared in the script itself: a function, a variable, a method, or a parameter.
_OWN = r"(?:function\*?|const|let|class) {name}\b|^\s+(?:async )?{name}\([^)]*\) \{{|[(,{{] ?{name} ?[,)}}:=]"
EXPORTED = {name for script in SCRIPTS for name in _EXPORTED.findall(script.read_text())}


#: A change of something of a virtual host, by a path that is written out.
_ASKED = re.compile(r'\b(post|put)\((?:path\(|\[)"([\w-]+)", \w+, \w+, "([\w-]+)"\]?')


def test_what_is_asked_for_is_in_the_api() -> None:
    api = json.loads((Path(__file__).parents[3] / "docs/openapi.json").read_text())["paths"]
    asked = {found for script in SCRIPTS for found in _ASKED.findall(script.read_text())}
    assert {("post", "queues", "cancel"), ("post", "queues", "read")} <= asked
    for method, noun, verb in asked:
        assert method in api[f"/api/{noun}/{{vhost}}/{{name}}/{verb}"], (method, noun, verb)


def test_a_message_is_cancelled_after_a_question() -> None:
    """And only one that the user sees, that waits, and that has an id to cancel it by."""
    script = (PAGE / "peek.js").read_text()
    guard, question, request = (
        script.index(text)
        for text in ("if (message.due === undefined || !id) return null;", "await ask(", "await cancel(id)")
    )
    assert guard < question < request
    assert script.count("await cancel(") == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_what_is_called_is_there(script: Path) -> None:
    text = script.read_text()
    code = re.sub(r"/\*(?:.|\n)*?\*/|//.*|\"(?:[^\"\\]|\\.)*\"", "", text)
    imported = {
        name.split(" as ")[-1].strip() for names in _IMPORTED.findall(text) for name in names.split(",")
    }
    called = set(re.findall(r"(?<![\w.#])(\w+)\(", code)) & EXPORTED
    own = {name for name in called if re.search(_OWN.format(name=name), code, re.MULTILINE)}
    assert called - imported - own == set()
