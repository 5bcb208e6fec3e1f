"""Features that RabbitMQ has in plugins."""

#: Exchange types beyond the four of AMQP, and their plugins in RabbitMQ.
PLUGINS = {
    "x-consistent-hash": "rabbitmq_consistent_hash_exchange",
    "x-modulus-hash": "rabbitmq_sharding",
    "x-random": "rabbitmq_random_exchange",
}
