"""Consumer groups over streams: who reads which partition, and how far the group is. Pure. See docs/streams.md."""
