"""All pages, by their names."""

from __future__ import annotations

from amqp_server.reference import arguments, commands, http, options


def pages() -> dict[str, str]:
    return {
        "options.md": options.page(),
        "commands.md": commands.page(),
        "arguments.md": arguments.page(),
        "http.md": http.page(),
    }
