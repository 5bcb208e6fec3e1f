"""Nodes of several processes, and what these have in common."""
