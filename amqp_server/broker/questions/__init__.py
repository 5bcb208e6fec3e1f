"""Questions and requests that clients send as messages to names which no queue can have."""
