"""Consumer groups on a node: their hosts, readers, deliveries and dead letters."""
