"""Which message comes next, where that is not the first one: messages that wait, and message groups."""
