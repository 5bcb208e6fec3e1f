"""What a queue does: one pure, deterministic machine."""
