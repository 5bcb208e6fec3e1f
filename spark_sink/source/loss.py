"""The error of a query when messages are gone that it should have read."""


class DataLoss(Exception):
    """A replay did not find the messages that the checkpoint speaks of."""
