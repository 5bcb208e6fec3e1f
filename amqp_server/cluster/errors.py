"""What keeps a node from being part of a cluster."""


class ClusterError(Exception):
    """This node cannot be a part of the cluster as it is configured; the text says what to do."""


class StartAgain(Exception):
    """The process has to restart from what is on disk now; this is no failure."""
