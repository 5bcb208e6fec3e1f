"""Transactions of a channel: what is collected until the commit, and the ways to commit it."""
