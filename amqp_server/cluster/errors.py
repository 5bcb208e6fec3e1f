"""Errors that keep a node from being part of a cluster."""


class ClusterError(Exception):
    """This node cannot be a part of the cluster as it is configured; the text says what to do."""


class StartAgain(Exception):
    """The process has to restart from its present disk; this is no failure."""
