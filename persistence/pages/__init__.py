"""LMDB's data file below LMDB: its pages, its length, its damage."""
