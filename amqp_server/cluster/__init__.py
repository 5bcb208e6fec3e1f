"""This node as one of several."""
