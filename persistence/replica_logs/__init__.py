"""The logs, votes and snapshots of replicas."""
