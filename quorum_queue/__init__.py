"""Queues: their machine, and the logs that run it."""
