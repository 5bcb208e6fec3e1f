"""Vhosts, exchanges, queues, bindings and policies, as every node of a cluster has them."""
