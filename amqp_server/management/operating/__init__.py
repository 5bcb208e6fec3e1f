"""What an operator sees and does of a running node: alarms, options in force, service and maintenance."""
