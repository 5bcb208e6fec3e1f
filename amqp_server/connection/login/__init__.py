"""Who a client is: mechanisms, passwords, tokens, certificates."""
