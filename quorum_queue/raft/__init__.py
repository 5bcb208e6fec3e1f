"""The core of Raft, pure: no clock, no chance, no I/O."""
