"""Pure routing: which queues a message goes to. No clock, no randomness, no I/O."""
