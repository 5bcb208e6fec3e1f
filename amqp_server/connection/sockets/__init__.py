"""Clients' sockets: listening, TLS, the poller, and bytes to and from sessions."""
