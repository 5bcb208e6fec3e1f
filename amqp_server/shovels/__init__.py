"""Shovels: clients within the node that move messages from one broker to another. See docs/shovels.md."""
