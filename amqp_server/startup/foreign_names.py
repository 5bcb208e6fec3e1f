"""Names of RabbitMQ's settings, and those that people guess, with mqd's options for the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: By name without `-`, `_` and what follows a point.
OPTIONS = {
    "port": "amqp",
    "host": "amqp",
    "bind": "amqp",
    "listen": "amqp",
    "listeners": "amqp",
    "ssl": "amqps",
    "tls": "amqps",
    "ssl_options": "tls_cert_file",
    "certfile": "tls_cert_file",
    "keyfile": "tls_key_file",
    "management": "http",
    "management_port": "http",
    "http_port": "http",
    "prometheus": "metrics",
    "data": "data_dir",
    "datadir": "data_dir",
    "mnesia_dir": "data_dir",
    "nodename": "node",
    "name": "node",
    "cluster": "peers",
    "cluster_formation": "peers",
    "erlang_cookie": "cluster_secret_file",
    "vm_memory_high_watermark": "memory_limit",
    "total_memory_available_override_value": "memory_limit",
    "disk_free_limit": "disk_free_min_bytes",
    "default_pass": "default_password",
    "user": "default_user",
    "password": "default_password",
    "heartbeat": "heartbeat_s",
    "frame_max": "frame_max_bytes",
    "max_message_size": "message_bytes_max",
    "consumer_timeout": "consumer_timeout_ms",
    "consumer_disconnected_timeout": "node_down_ms",
    "connection_max": "connections_max",
    "log": "log_level",
    "verbose": "log_level",
    "definitions": "load_definitions",
}
#: Variables of RabbitMQ's container image.
VARIABLES = {
    "RABBITMQ_DEFAULT_USER": "MQD_DEFAULT_USER",
    "RABBITMQ_DEFAULT_PASS": "MQD_DEFAULT_PASSWORD",
    "RABBITMQ_DEFAULT_VHOST": "MQD_DEFAULT_VHOST",
    "RABBITMQ_NODENAME": "MQD_NODE",
    "RABBITMQ_NODE_PORT": "MQD_AMQP",
    "RABBITMQ_CONFIG_FILE": "MQD_CONFIG",
}


def option_for(name: str) -> str:
    """Return mqd's option for such a name, or nothing."""
    plain = name.lstrip("-").replace("-", "_").partition(".")[0].lower()
    return OPTIONS.get(plain, "")


def ignored_variables(environment: Iterable[str]) -> Iterator[str]:
    """Yield a text for each variable of RabbitMQ that stands alone, without the one of mqd."""
    names = set(environment)
    for foreign, own in VARIABLES.items():
        if foreign in names and own not in names:
            yield f"{foreign} in the environment is RabbitMQ's and is ignored; mqd reads {own}"
