"""How a stream stores messages, and how they become deliveries."""
