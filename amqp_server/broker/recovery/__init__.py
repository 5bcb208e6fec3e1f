"""From the disk into the broker: at a start, and after a queue has failed."""
