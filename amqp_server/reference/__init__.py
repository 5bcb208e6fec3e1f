"""The pages of docs/reference, made from the code: `python -m amqp_server.reference` writes them."""
