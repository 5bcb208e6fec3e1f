"""Messages to rows."""
