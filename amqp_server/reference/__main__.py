"""`python -m amqp_server.reference`, in a checkout."""

from __future__ import annotations

from pathlib import Path

from amqp_server.reference.pages import pages

DIRECTORY = Path(__file__).parents[2] / "docs" / "reference"


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in pages().items():
        (DIRECTORY / name).write_text(text)


if __name__ == "__main__":
    main()
