"""The harm that one hostile or careless client can do to the others: `make attack`.

Each scene is an attack on a new node while a bystander goes on with small messages. The scene is judged by
the bystander's latency and the broker's memory.
"""
