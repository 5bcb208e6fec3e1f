"""Fixtures that several tests of connections share."""

from __future__ import annotations

import pytest

from .authority import Authority, make_authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"))
