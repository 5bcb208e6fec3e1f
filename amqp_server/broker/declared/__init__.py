"""What clients and operators declare, as data: arguments, settings, parameters, records."""
