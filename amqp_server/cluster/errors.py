"""What keeps a node from being part of a cluster."""


class ClusterError(Exception):
    """This node cannot be a part of the cluster as it is configured; the text says what to do."""


class StartAgain(Exception):
    """The process has to start again, with what is on disk now; nothing is wrong with that."""
