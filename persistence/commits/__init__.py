"""From submitted changes to the disk: layers, the write-ahead log, and who is told when."""
