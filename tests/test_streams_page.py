"""The programs in docs/streams.md, one after the other against one broker."""

import re
import subprocess
import sys
from pathlib import Path

from conformance_tests.patience import PATIENCE_S

from .test_examples import address

ROOT = Path(__file__).parents[1]
ORDERS = [
    f"orders-{partition} {customer}'s order {order}\n"
    for partition, customer in enumerate(("ada", "max", "ben"))
    for order in (1, 2)
]
BILLED = [
    f"orders-{partition} {order - 1} {customer}'s order {order}\n"
    for partition, customer in enumerate(("ada", "max", "ben"))
    for order in (1, 2)
]
PRINTED = [
    "",
    "99 kitchen 99\n",
    "".join(f"{number} kitchen {number}\n" for number in (91, 93, 95, 97, 99)),
    "".join(ORDERS),
    "".join(BILLED),
]

__all__ = ["address"]


def test_the_programs_do_what_the_page_says(address: str) -> None:
    page = (ROOT / "docs" / "streams.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "It prints `99 kitchen 99`." in page and "the readings 91, 93, 95, 97 and 99" in page
    printed = []
    for program in programs:
        assert program.count("127.0.0.1:5672") == 1
        done = subprocess.run(
            [sys.executable, "-c", program.replace("127.0.0.1:5672", address)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        printed.append(done.stdout)
    # To a group, partitions come in any order, each in its own.
    printed[-1] = "".join(sorted(printed[-1].splitlines(keepends=True), key=lambda line: line.split()[0]))
    assert printed == PRINTED
