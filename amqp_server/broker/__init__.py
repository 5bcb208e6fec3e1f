"""What all connections of a node share, without I/O."""
