"""All replicas of a node: batches of commands, entries, and frames between nodes."""
