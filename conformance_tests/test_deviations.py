"""The list of deviations itself: complete entries that name tests which exist."""

from fnmatch import fnmatchcase

import pytest

from conformance_tests.conftest import COLLECTED, DEVIATIONS, relative_id


@pytest.mark.parametrize(
    "entry", DEVIATIONS, ids=lambda entry: f"{entry.get('test')} on {entry.get('broker')}"
)
def test_entry_is_complete_and_names_a_test(entry: dict[str, str]) -> None:
    assert set(entry) == {"test", "broker", "what", "reason"}
    assert all(value.strip() for value in entry.values())
    file = entry["test"].partition("::")[0]
    of_file = [nodeid for nodeid in map(relative_id, COLLECTED) if nodeid.startswith(f"{file}::")]
    if not of_file:
        pytest.skip(f"{file} is not part of this run")
    assert any(fnmatchcase(nodeid, entry["test"]) for nodeid in of_file)
