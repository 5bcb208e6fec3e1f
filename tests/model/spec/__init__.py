"""What a broker promises, as a program that can be run: no sockets, no clock, no chance. See tests/model."""
