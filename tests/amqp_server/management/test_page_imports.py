"""The scripts of the page import what they call of each other: without a browser nothing else tells."""

from __future__ import annotations

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
