"""All attacks, in the order of the table."""

from ..scene import Scene
from . import floods, memory, page, routing, settling, streams, web

SCENES: tuple[Scene, ...] = (
    *memory.SCENES,
    *settling.SCENES,
    *routing.SCENES,
    *streams.SCENES,
    *floods.SCENES,
    *web.SCENES,
    *page.SCENES,
)
