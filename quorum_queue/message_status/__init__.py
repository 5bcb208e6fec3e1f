"""The record of messages around the machine: in the journal of a node, and as an answer."""
