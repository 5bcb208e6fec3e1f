"""Limits on counts: each limit, and each way to make what it counts."""
