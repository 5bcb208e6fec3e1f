"""How the API changes the broker: as a client, or by a proposal."""
