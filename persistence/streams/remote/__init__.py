"""Segments in an object store."""
