"""Processes that are one node: a parent starts and watches them, and each works for its own queues."""
