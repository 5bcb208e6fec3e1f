"""For all tests."""

from hypothesis import HealthCheck, settings

# Machines differ in speed, and the first example on a clean clone waits for Unicode's tables to be made.
settings.register_profile("mqd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mqd")
