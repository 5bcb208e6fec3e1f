from collections.abc import Iterable

import pytest


class MemoryMetadata:
    """The port of users, permissions and vhosts, over dictionaries."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, bytes]] = {}

    def put(self, table: str, key: str, value: bytes) -> None:
        self.tables.setdefault(table, {})[key] = value

    def delete(self, table: str, key: str) -> None:
        self.tables.get(table, {}).pop(key, None)

    def items(self, table: str) -> Iterable[tuple[str, bytes]]:
        return list(self.tables.get(table, {}).items())


@pytest.fixture
def metadata() -> MemoryMetadata:
    return MemoryMetadata()
