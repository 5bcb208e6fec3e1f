"""Snapshots of replicas: taken, stored, and sent to members that lack entries."""
