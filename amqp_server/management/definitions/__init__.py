"""Definitions: exported and imported."""
