"""What stops a queue on a node."""


class Unreadable(Exception):
    """The log of a queue holds what this version of mqd can't read. To try again does not help: another version may."""
