"""Consumer groups over streams: the assignment of partitions to members, and the progress of the group. Pure.
See docs/streams.md.
"""
