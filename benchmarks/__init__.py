"""mqd beside RabbitMQ: the performance that users see, measured over sockets in one run.

`python -m benchmarks` starts both brokers, alternates between them round by round within each scenario,
and compares medians. One single-threaded client drives both; it sends blocks of messages encoded in advance
and counts deliveries by size, so that the broker is measured and not the client. Its own upper limit is
printed first.
"""
