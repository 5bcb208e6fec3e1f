"""Queues that are logs: the layout of messages in them, their delivery, and the host of a stream. See
docs/streams.md.
"""
