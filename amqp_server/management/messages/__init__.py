"""Messages as an operator handles them: sent and got by hand, looked at, moved, and what became of one."""
