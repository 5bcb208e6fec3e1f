"""Stores in memory, with failures on demand."""
