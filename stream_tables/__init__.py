"""Writes streams as tables: Parquet files beside the segments in an object store, and commits to Iceberg.

A process of its own (`python -m stream_tables`), which a broker starts when there is something to write. So
the broker needs neither the memory of pyarrow nor the time for making rows.
"""
