"""How examples are chosen by hypothesis: the same ones in every run, or random ones where they are asked for.

A test that fails for one has to fail for all, and as soon as it is mended for nobody. So nothing is random,
and nothing is kept from earlier runs, unless `--hypothesis-profile=fuzz` says so; `make fuzz` does.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SAME, FUZZ = "same", "fuzz"

# Machines differ in speed, and the first example on a clean clone waits for Unicode's tables to be made.
_anywhere = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

settings.register_profile(SAME, _anywhere, derandomize=True, database=None)
# Examples that failed are kept here, so that the next run begins with them.
settings.register_profile(FUZZ, _anywhere, derandomize=False)


def choose() -> None:
    """Take the same examples. pytest's --hypothesis-profile is read later, and goes before this."""
    settings.load_profile(SAME)
