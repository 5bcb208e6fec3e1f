"""One client's connection: frames, sessions, outboxes."""
