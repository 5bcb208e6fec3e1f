"""What one hostile or careless client can do to the others: `make attack`.

Each scene is an attack on a fresh node while a bystander goes on with small messages. The bystander's latency
and the broker's memory are the judges.
"""
