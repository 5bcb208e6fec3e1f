"""One request: who asks, what for, and how an answer is made."""
