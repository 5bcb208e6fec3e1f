"""What a start needs besides the node itself: options, the first administrator, definitions, reloads."""
