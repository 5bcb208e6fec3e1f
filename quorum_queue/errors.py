"""Errors that stop a queue on a node."""


class Unreadable(Exception):
    """The log of a queue has an entry that this version of mqd can't read. A retry does not help; another
    version may be able to read it.
    """
