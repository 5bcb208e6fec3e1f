"""Hosts of replicated queues, and their clients on other nodes."""
