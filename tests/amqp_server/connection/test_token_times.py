"""Times in tokens: any JSON value as `exp`, `nbf` or `iat`. None of them is an error of the broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from conformance_tests.patience import PATIENCE_S

from .served import served
from .test_tokens import Issuer, logged_in, refused

#: No time, or one that is over.
BAD_TIMES: dict[str, Any] = {
    "a text": "soon",
    "a number as text": str(int(time.time()) + 3600),
    "true": True,
    "a list": [1],
    "an object": {"a": 1},
    "NaN": float("nan"),
    "infinite": float("inf"),
    "less than infinite": float("-inf"),
    "negative": -1,
    "very negative": -(10**400),
}
#: A token with these does not expire in the life of the node.
FAR_TIMES: dict[str, Any] = {
    "a large float": 1e308,
    "larger than a float": 10**400,
    "the year 10000": 253_402_300_800,
}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    made = Issuer(tmp_path_factory.mktemp("issuer"))
    yield made
    made.close()


async def test_tokens_of_bad_times_are_refused_over_amqp(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, **issuer.options, login_failures_free=100) as node:
        for what, exp in BAD_TIMES.items():
            caplog.clear()
            await refused(node, issuer.token(exp=exp))
            assert "token refused: it " in caplog.text, what
        for exp in FAR_TIMES.values():
            async with logged_in(node, issuer.token(exp=exp)):
                (session,) = node.broker.sessions
                session.check_grant(int(time.time() * 1000) + 10**9)  # type: ignore[attr-defined]
                (session,) = node.broker.sessions
        assert not [
            record for record in caplog.records if record.exc_info or record.levelno >= logging.CRITICAL
        ]


@pytest.mark.parametrize("claim", ["nbf", "iat"])
async def test_not_before_and_issued_at(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture, claim: str
) -> None:
    async with served(tmp_path, **issuer.options, login_failures_free=100) as node:
        for what, value in {**BAD_TIMES, **FAR_TIMES}.items():
            past = what in ("negative", "very negative")
            if past or claim == "iat":
                # Nothing depends on when a token was issued.
                async with logged_in(node, issuer.token(**{claim: value})):
                    pass
            else:
                caplog.clear()
                await refused(node, issuer.token(**{claim: value}))
                assert "token refused: it is not valid yet" in caplog.text or "malformed" in caplog.text, what
        assert not [record for record in caplog.records if record.exc_info]


async def test_tokens_of_bad_times_are_refused_over_http(tmp_path: Path, issuer: Issuer) -> None:
    options = issuer.options | {"login_failures_free": 100}
    async with (
        served(tmp_path, http="127.0.0.1:0", **options) as node,
        httpx.AsyncClient(base_url=f"http://{node.http_address}/", timeout=PATIENCE_S) as client,
    ):

        async def status(token: str) -> int:
            told = await client.get("api/whoami", headers={"authorization": f"Bearer {token}"})
            return told.status_code

        for what, exp in BAD_TIMES.items():
            assert await status(issuer.token("mqd.tag:management", exp=exp)) == 401, what
        for what, exp in FAR_TIMES.items():
            token = issuer.token("mqd.tag:management", exp=exp)
            assert await status(token) == 200, what
            form = {"username": "x", "password": token}
            page = await client.post("api/session", json=form)
            assert page.status_code < 500, what
