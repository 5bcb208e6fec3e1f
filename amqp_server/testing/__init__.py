"""mqd for the tests of other programs: a broker or a cluster that starts quickly, and is removed after the
tests.

Programs import this package as `mqd.testing`. Its brokers are separate processes, so that tests may use any
client and any event loop. It imports nothing of the broker. See docs/testing.md.
"""

from amqp_server.testing.broker import Broker, Vhost, start
from amqp_server.testing.cluster import Cluster, start_cluster
from amqp_server.testing.process import StartFailed

__all__ = ["Broker", "Cluster", "StartFailed", "Vhost", "start", "start_cluster"]
