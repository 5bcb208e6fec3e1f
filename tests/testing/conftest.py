"""The brokers here are those that `make test` starts: compiled, if TEST_PROGRAMS says so."""

from amqp_server.testing import process
from conformance_tests import programs

process.PYTHON = programs.python()
