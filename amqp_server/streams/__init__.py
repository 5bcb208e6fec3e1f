"""Queues that are logs: how messages stand in them, how they are handed out, and the host of one. See
docs/streams.md.
"""
