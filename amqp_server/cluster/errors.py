"""Errors that keep a node from being part of a cluster."""


class ClusterError(Exception):
    """This node cannot be a part of the cluster as it is configured; the text says what to do."""


class OutOfCluster(ClusterError):
    """This node was a part of the cluster, and cannot be any more with this data directory."""


class StartAgain(Exception):
    """The process has to restart from its present disk; this is no failure."""
