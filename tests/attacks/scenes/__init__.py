"""All attacks, in the order of the table."""

from ..scene import Scene
from . import administration, budgets, floods, links, logins, memory, page, routing, settling, streams, web

SCENES: tuple[Scene, ...] = (
    *memory.SCENES,
    *settling.SCENES,
    *routing.SCENES,
    *streams.SCENES,
    *floods.SCENES,
    *logins.SCENES,
    *links.SCENES,
    *web.SCENES,
    *administration.SCENES,
    *page.SCENES,
    *budgets.SCENES,
)
