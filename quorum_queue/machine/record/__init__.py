"""The record of messages: what became of each message that a queue has taken."""
