"""The broker as a program: AMQP, its clients, the cluster, the management API."""
