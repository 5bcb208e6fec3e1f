"""All attacks, in the order of the table."""

from ..scene import Scene
from . import floods, memory, routing, settling, web

SCENES: tuple[Scene, ...] = (*memory.SCENES, *settling.SCENES, *routing.SCENES, *floods.SCENES, *web.SCENES)
