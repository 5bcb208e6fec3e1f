"""What RabbitMQ has in plugins."""

#: Exchange types beyond the four of AMQP, and what brings them to RabbitMQ.
PLUGINS = {
    "x-consistent-hash": "rabbitmq_consistent_hash_exchange",
    "x-modulus-hash": "rabbitmq_sharding",
    "x-random": "rabbitmq_random_exchange",
}
