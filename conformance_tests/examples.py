"""Makes hypothesis choose the same examples in every run, or random ones on request.

A test that fails on one machine has to fail on all machines, and after a fix on none. So nothing is random,
and nothing is stored from earlier runs, unless `--hypothesis-profile=fuzz` is given, as `make fuzz` does.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SAME, FUZZ = "same", "fuzz"

# Machines differ in speed, and the first example on a clean clone waits for Unicode's tables to be made.
_anywhere = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

settings.register_profile(SAME, _anywhere, derandomize=True, database=None)
# Failed examples are stored here, so that the next run begins with them.
settings.register_profile(FUZZ, _anywhere, derandomize=False)


def choose() -> None:
    """Use the same examples in every run. pytest's --hypothesis-profile is read later, and overrides this."""
    settings.load_profile(SAME)
