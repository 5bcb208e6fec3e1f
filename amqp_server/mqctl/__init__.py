"""The command line for operators, which speaks to the management API."""
