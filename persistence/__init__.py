"""Everything that the node keeps on disk:

Queue journals and metadata in LMDB, delivery marks in a mapped file.
"""
