"""What other brokers do differently, and why the model asks for what mqd does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.model.campaign import Failure


@dataclass(frozen=True)
class Difference:
    #: Beginning of product and version.
    broker: str
    #: Found in the text of the failure.
    text: str
    #: Choices of the row without which it does not happen.
    row: tuple[tuple[str, str], ...]
    reason: str


KNOWN: tuple[Difference, ...] = ()


def known(product: str, failure: Failure) -> str | None:
    for each in KNOWN:
        row = failure.program.row
        if (
            product.startswith(each.broker)
            and re.search(each.text, failure.text)
            and all(row.get(k) == v for k, v in each.row)
        ):
            return each.reason
    return None
