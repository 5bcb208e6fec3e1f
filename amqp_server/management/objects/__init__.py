"""The running broker as the resources of the API use it."""
