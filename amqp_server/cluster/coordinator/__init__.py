"""What the cluster decides about transactions over several queues."""
