"""Streams whose older messages are in an object store."""
