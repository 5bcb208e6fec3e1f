"""The bill of materials of a release (CycloneDX): mqd and all libraries that it needs at run time, as they
are installed here.
"""

from __future__ import annotations

import re
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from amqp_server.config import VERSION

_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: Requirements of the tests, the documentation and the like.
_EXTRA = re.compile(r";.*\bextra\b")


def libraries() -> dict[str, Distribution]:
    """Return what mqd needs, and what that needs in turn, by normalised name."""
    found: dict[str, Distribution] = {}
    waiting = ["mqd"]
    while waiting:
        name = waiting.pop()
        try:
            here = distribution(name)
        except PackageNotFoundError:
            # A requirement of another platform or Python.
            continue
        if name != "mqd":
            found[normalised(name)] = here
        for line in here.requires or ():
            required = _NAME.match(line)
            if required and not _EXTRA.search(line) and normalised(required[0]) not in found:
                waiting.append(required[0])
    return dict(sorted(found.items()))


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def bill() -> dict[str, Any]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'pkg:pypi/mqd@{VERSION}')}",
        "version": 1,
        "metadata": {"component": _component("application", "mqd", VERSION, "Apache-2.0")},
        "components": [
            _component("library", name, each.version, _licence(each)) for name, each in libraries().items()
        ],
    }


def _component(kind: str, name: str, version: str, licence: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": kind,
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    return told | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def _licence(library: Distribution) -> str:
    about = library.metadata
    for name in ("License-Expression", "License"):
        told = str((about.get_all(name) or [""])[0])
        # Some have the whole text there.
        if told and "\n" not in told:
            return told
    classified = [line for line in about.get_all("Classifier") or () if line.startswith("License :: ")]
    return classified[0].rpartition(" :: ")[2] if classified else ""
