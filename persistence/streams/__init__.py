"""The log of a stream: batches in segment files that are read by offset and by time. See
docs/adr/0019-streams.md.
"""
