"""Which nodes a cluster has, and how a node comes and goes."""
