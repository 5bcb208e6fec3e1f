"""All attacks, in the order of the table."""

from ..scene import Scene
from . import floods, memory, page, routing, settling, web

SCENES: tuple[Scene, ...] = (
    *memory.SCENES,
    *settling.SCENES,
    *routing.SCENES,
    *floods.SCENES,
    *web.SCENES,
    *page.SCENES,
)
