"""What durable queues on one node store in the journal beside their messages."""
