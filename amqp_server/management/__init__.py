"""The management API over HTTP, its metrics and its page."""
