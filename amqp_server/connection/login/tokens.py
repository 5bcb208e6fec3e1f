"""Tokens instead of passwords: JSON Web Tokens that an OAuth 2 or OpenID Connect server has signed.

The server's keys are fetched over TLS, and cached. A token with an unknown key causes another fetch, but
rarely: strangers choose the content of tokens. Logins that wait for the server do not delay other logins of
their address, and a cancelled login stops no fetch. No part of a token is ever logged.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from amqp_server.broker.access.token_permissions import SCOPES_MAX, Token
from amqp_server.broker.access.users import UserRefused, checked_name
from amqp_server.connection.login.http_client import body_of, quiet, reason, streamed
from amqp_server.connection.login.password_checks import Outcome, PasswordChecks
from amqp_server.imports import imported

if TYPE_CHECKING:
    import httpx

    from amqp_server.config import Config

logger = logging.getLogger("mqd.connection")

#: Algorithms with public keys. Tokens signed with a shared secret are not accepted.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
#: The end of the year 9999, in seconds since 1970. A token that is valid for longer is valid until then.
LATEST_S = 253_402_300_799
DISCOVERY = "/.well-known/openid-configuration"


class TokenRefused(Exception):
    """A token is not accepted. The text contains nothing of the token."""


class KeysUnavailable(Exception):
    """The keys cannot be fetched."""


class KeysWanted(Exception):
    """The keys have to be fetched before this token can be checked."""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def is_token(password: str) -> bool:
    """True if the password has the form of a token: three parts, of which the first is a JSON object in
    base64.
    """
    return password.startswith("eyJ") and password.count(".") == 2


#: Runs a function in a thread.
Run = Callable[..., Awaitable[Any]]


class Tokens:
    def __init__(self, config: Config) -> None:
        self._config = config
        #: The clock for the expiry of keys and checked tokens, s.
        self.now: Callable[[], float] = trio.current_time
        #: Keys by their ids.
        self._keys: dict[str, Any] = {}
        self._fetched_at = self._tried_at = -1e9
        #: Set when the current fetch is over.
        self._fetching: trio.Event | None = None
        #: Digests of valid tokens, with the time until which they need no check.
        self._checked: OrderedDict[bytes, tuple[Token, float]] = OrderedDict()

    @property
    def bytes_max(self) -> int:
        return self._config.oauth_token_bytes_max

    async def log_in(
        self, checks: PasswordChecks, peer: str, secret: str, waiting_max: int | None = None
    ) -> tuple[Outcome, str, Token | None]:
        """Check a token, in the turn of its address. Return the outcome, and the reason of a refusal for the
        log.
        """
        reason, token, waits = "", self._recall(secret), False
        if token is not None:
            return Outcome.ACCEPTED, reason, token

        async def verify() -> bool:
            nonlocal reason, token, waits
            try:
                token = await self.check(secret, checks.run, waited=waits)
            except KeysWanted:
                waits = True
                return True
            except (TokenRefused, KeysUnavailable) as refused:
                reason = f"token refused: {refused}"
                # A login does not count as failed if the server did not answer.
                return isinstance(refused, KeysUnavailable)
            self._remember(secret, token)
            return True

        outcome = await checks.check_otherwise(peer, verify, waiting_max)
        if waits:
            # Wait outside the turn of the address: its other logins may have passwords, or known keys.
            await self._fetched()
            outcome = await checks.check_otherwise(peer, verify, waiting_max)
        if outcome is Outcome.ACCEPTED and token is None:
            outcome = Outcome.REFUSED
        return outcome, reason, token

    def _recall(self, secret: str) -> Token | None:
        token, until = self._checked.get(_digest(secret), (None, 0.0))
        return token if self.now() < until and token and time.time() < token.expires_at_s else None

    def _remember(self, secret: str, token: Token) -> None:
        self._checked[_digest(secret)] = token, self.now() + self._config.login_memory_s
        while len(self._checked) > self._config.login_memory_entries_max:
            self._checked.popitem(last=False)

    async def check(self, token: str, run: Run, *, waited: bool) -> Token:
        """Check a token. `waited`: the keys were fetched for it already. Raises TokenRefused,
        KeysUnavailable, KeysWanted.
        """
        if len(token) > self._config.oauth_token_bytes_max:
            raise TokenRefused("it is too long")
        header = await run(_header, token)
        kid, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in ALGORITHMS:
            raise TokenRefused("it is signed by an algorithm that is not accepted")
        key = self._key(kid if isinstance(kid, str) else "", waited=waited)
        claims: Mapping[str, Any] = await run(_verified, token, key, algorithm, self._config)
        return token_of(claims, self._config)

    def _key(self, kid: str, *, waited: bool) -> Any:
        """Return the key with this id. Raises TokenRefused, KeysUnavailable, KeysWanted."""
        if not waited and self._wants_keys(known=self._find(kid) is not None):
            raise KeysWanted
        key = self._find(kid)
        if key is not None:
            return key
        if not self._keys:
            raise KeysUnavailable("the keys of the authorization server could not be fetched")
        raise TokenRefused("the authorization server has no such key")

    def _wants_keys(self, *, known: bool) -> bool:
        if self._fetching is not None:
            # Only one login waits for fresh keys; others continue with the known ones.
            return not known
        now, config = self.now(), self._config
        stale = now - self._fetched_at > config.oauth_keys_age_s
        return (stale or not known) and now - self._tried_at >= config.oauth_keys_pause_s

    def _find(self, kid: str) -> Any:
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _fetched(self) -> None:
        """Wait until a separate task has fetched the keys: otherwise a client that disconnects would stop the
        fetch for all clients until the pause is over.
        """
        if self._fetching is None:
            self._fetching = trio.Event()
            self._tried_at = self.now()
            trio.lowlevel.spawn_system_task(self._fetch, self._fetching)
        await self._fetching.wait()

    async def _fetch(self, done: trio.Event) -> None:
        try:
            self._keys = await fetch_keys(self._config)
        except KeysUnavailable as failure:
            # Keep the known keys: a short outage of the server must not lock users out.
            logger.error("the keys of the authorization server were not fetched: %s", failure)
        except Exception:
            # With any answer of the other server, no login may wait for ever, and the node must not end.
            logger.exception("the keys of the authorization server were not fetched")
        else:
            self._fetched_at = self.now()
            logger.info("fetched %d keys of the authorization server", len(self._keys))
        finally:
            self._fetching = None
            done.set()


def _header(token: str) -> dict[str, Any]:
    import jwt

    try:
        return dict(jwt.get_unverified_header(token))
    except jwt.PyJWTError:
        raise TokenRefused("it is malformed") from None


def _verified(token: str, key: Any, algorithm: str, config: Config) -> Mapping[str, Any]:
    import jwt

    if key.key_type != _KEY_TYPES[algorithm[:2]]:
        raise TokenRefused("its algorithm is not that of the key")
    try:
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            audience=config.oauth_resource_server_id if config.oauth_verify_audience else None,
            issuer=config.oauth_issuer or None,
            leeway=config.oauth_leeway_s,
            options={
                "require": ["exp", *(["iss"] if config.oauth_issuer else [])],
                "verify_aud": config.oauth_verify_audience,
                "verify_iat": False,
            },
        )
    except jwt.ExpiredSignatureError:
        raise TokenRefused("it has expired") from None
    except jwt.ImmatureSignatureError:
        raise TokenRefused("it is not valid yet") from None
    except jwt.InvalidAudienceError:
        raise TokenRefused("it is for another audience") from None
    except jwt.InvalidIssuerError:
        raise TokenRefused("it has another issuer") from None
    except jwt.MissingRequiredClaimError as missing:
        raise TokenRefused(f"it has no claim '{missing.claim}'") from None
    except jwt.InvalidSignatureError:
        raise TokenRefused("its signature is wrong") from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        raise TokenRefused("it is malformed") from None
    return claims


#: Types of keys by the first letters of an algorithm: an RSA key checks no other signature.
_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


def token_of(claims: Mapping[str, Any], config: Config) -> Token:
    """Return the user and grant in these claims. Raises TokenRefused."""
    names = (claims.get(claim) for claim in config.oauth_username_claims)
    name = next((name for name in names if isinstance(name, str) and name), "")
    try:
        checked_name(name)
    except UserRefused:
        raise TokenRefused("it names no user") from None
    prefix = config.oauth_scope_prefix or f"{config.oauth_resource_server_id}."
    found: dict[str, None] = {}
    for claim in config.oauth_scope_claims:
        value = claims.get(claim)
        scopes = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
        for scope in scopes:
            if isinstance(scope, str) and scope.startswith(prefix) and scope.isprintable():
                found[scope[len(prefix) :]] = None
    if len(found) > SCOPES_MAX:
        raise TokenRefused(f"it has more than {SCOPES_MAX} scopes")
    expires_at_s = _seconds(claims, "exp")
    if "nbf" in claims:
        # The library has compared it, but takes texts and switches for numbers.
        _seconds(claims, "nbf")
    return Token(name, tuple(found), expires_at_s + config.oauth_leeway_s)


def _seconds(claims: Mapping[str, Any], claim: str) -> float:
    """Return a time in seconds from 1970 to LATEST_S: JSON has numbers of any size. Raises
    TokenRefused.
    """
    told = claims[claim]
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise TokenRefused(f"it is malformed: '{claim}' is not a number")
    # NaN and infinity are refused before: they are no whole numbers.
    return float(max(0, min(told, LATEST_S)))


async def fetch_keys(config: Config) -> dict[str, Any]:
    """Return the server's keys by their ids. Takes no longer than oauth_fetch_timeout_s. Raises
    KeysUnavailable.
    """
    # Imported in a thread: the first import takes about 40 ms.
    await imported("httpx")
    import httpx

    quiet()
    try:
        with trio.fail_after(config.oauth_fetch_timeout_s):
            tls = await trio.to_thread.run_sync(_tls, config, abandon_on_cancel=True)
            async with httpx.AsyncClient(verify=tls, timeout=None, trust_env=False) as client:
                get = partial(_get_json, client, config.oauth_answer_bytes_max)
                told = await get(config.oauth_jwks_url or await _discovered(get, config.oauth_issuer))
    except trio.TooSlowError:
        raise KeysUnavailable(f"no answer within {config.oauth_fetch_timeout_s:g} s") from None
    except httpx.HTTPStatusError as error:
        raise KeysUnavailable(f"{error.request.url} was answered with {error.response.status_code}") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise KeysUnavailable(reason(error)) from None
    return await trio.to_thread.run_sync(_keys_of, told.get("keys"))


def _tls(config: Config) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=config.oauth_ca_file or None)


def _keys_of(told: object) -> dict[str, Any]:
    """Return the keys in a key set. Raises KeysUnavailable."""
    import jwt

    found: dict[str, Any] = {}
    for each in told if isinstance(told, list) else ():
        if not isinstance(each, dict) or each.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        if each.get("use") not in (None, "sig"):
            continue
        try:
            key = jwt.PyJWK(each)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        kid = each.get("kid")
        found[kid if isinstance(kid, str) else ""] = key
    if not found:
        raise KeysUnavailable("none of its keys is for signatures")
    return found


Get = Callable[[str], Awaitable[dict[str, Any]]]


async def _discovered(get: Get, issuer: str) -> str:
    """Return the URL of the keys from the issuer's metadata. Raises KeysUnavailable."""
    url = (await get(issuer.rstrip("/") + DISCOVERY)).get("jwks_uri")
    if not isinstance(url, str) or not url.startswith("https://"):
        raise KeysUnavailable("the issuer's configuration has no jwks_uri that begins with https://")
    return url


async def _get_json(client: httpx.AsyncClient, most: int, url: str) -> dict[str, Any]:
    async with streamed(client, "GET", url, {"accept-encoding": "identity"}) as answer:
        answer.raise_for_status()
        text = await body_of(answer, most)
    if text is None:
        raise KeysUnavailable(f"the answer of {url} has more than {most} bytes")
    try:
        told = await trio.to_thread.run_sync(msgspec.json.decode, text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise KeysUnavailable(f"the answer of {url} is not JSON") from None
    if not isinstance(told, dict):
        raise KeysUnavailable(f"the answer of {url} is not a JSON object")
    return told
