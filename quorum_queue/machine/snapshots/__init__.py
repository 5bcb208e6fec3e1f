"""The state of a queue's machine as bytes."""
