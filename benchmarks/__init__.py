"""mqd beside RabbitMQ: what a user would feel, measured over sockets in one run.

`python -m benchmarks` starts both brokers, alternates between them round by round within each scenario,
and compares medians. One single-threaded client drives both; it sends blocks of messages encoded beforehand
and counts what comes back by size, so that the broker is what is measured. Its own ceiling is printed first.
"""
