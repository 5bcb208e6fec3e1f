"""A replicated stream on one of its members: its log, its data, its readers."""
