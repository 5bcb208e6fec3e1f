"""Asks an operator's server about logins and permissions, as RabbitMQ's rabbitmq_auth_backend_http does.

One question is one request, with Trio and without a thread. The number of simultaneous requests, the number
of waiting questions and the time for an answer are limited. Logins, which strangers can cause, get half of
the places; clients that are logged in have the other half.

Equal questions share one answer. An unanswered question counts as refused, and this result is not cached.
Questions are never logged, because they contain passwords.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import trio

from amqp_server.broker.access.http_permissions import ASKED, BackendAnswers, Question
from amqp_server.broker.access.token_permissions import Token
from amqp_server.broker.access.users import UserRefused, checked_name, checked_tags, is_loopback
from amqp_server.connection.login.http_client import body_of, quiet, reason, streamed
from quorum_queue.links.sources import source_of

if TYPE_CHECKING:
    import httpx

    from amqp_server.config import Config
    from amqp_server.logs import LineLimit

logger = logging.getLogger("mqd.connection")

#: Status codes of answers, as with RabbitMQ: any other status is no answer.
GOOD_STATUS = (200, 201)
ALLOW, DENY = "allow", "deny"
#: Longest time between two uses of one connection to the server, s.
KEPT_S = 5.0


class BackendFailed(Exception):
    """There is no answer. The text contains nothing of the question."""


class TooManyLogins(Exception):
    """Too many logins of this address wait for an answer."""


class _Asked:
    """A question in progress."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Callable[[bool], None]] = []


class _Address:
    """Logins of one address."""

    __slots__ = ("places", "waiting")

    def __init__(self, at_a_time: int) -> None:
        self.places = trio.CapacityLimiter(at_a_time)
        self.waiting = 0


class HttpBackend:
    def __init__(self, config: Config, answers: BackendAnswers, log_limit: LineLimit) -> None:
        self._config = config
        self._answers = answers
        self._log_limit = log_limit
        self._places = trio.CapacityLimiter(config.auth_http_requests_max)
        self._login_places = trio.CapacityLimiter(config.auth_http_requests_max // 2)
        #: Number of questions and logins in progress.
        self._waiting = 0
        self._asked: dict[Question, _Asked] = {}
        #: Answers to logins, with the time until which they are valid, by a digest of name and password with
        #: this key.
        self._key = secrets.token_bytes(32)
        self._logins: OrderedDict[bytes, tuple[tuple[str, ...] | None, float]] = OrderedDict()
        self._addresses: dict[str, _Address] = {}
        self._nursery: trio.Nursery | None = None
        self._client: httpx.AsyncClient | None = None
        self._making = trio.Lock()

    async def run(self) -> None:
        """Answer until cancelled."""
        for path in ("user", "vhost", "resource", "topic"):
            url = urlsplit(self._url(path))
            if url.scheme == "http" and url.hostname != "localhost" and not is_loopback(url.hostname or ""):
                logger.warning(
                    "auth_http_%s_path begins with http://: passwords and permissions are sent unencrypted",
                    path,
                )
        try:
            async with trio.open_nursery() as self._nursery:
                self._answers.asks = self._ask
                await trio.sleep_forever()
        finally:
            self._answers.asks = None
            if self._client is not None:
                with trio.CancelScope(shield=True), trio.move_on_after(1):
                    await self._client.aclose()

    # -- logins ----------------------------------------------------------------------------------------------

    async def log_in(self, peer: str, name: str, password: str | None) -> Token | None:
        """Return the user with its tags; None if the login is refused. Raises BackendFailed, TooManyLogins.

        Without a password, the client's certificate has this name.
        """
        try:
            checked_name(name)
        except UserRefused:
            return None
        digest = self._digest(name, password)
        known, until = self._logins.get(digest, (None, 0.0))
        if trio.current_time() >= until:
            known = await self._ask_in_turn(peer, name, password)
            self._remember(digest, known)
        if known is None:
            return None
        return Token(name, (ASKED, peer, *(f"tag:{tag}" for tag in known)), 0.0)

    def _digest(self, name: str, password: str | None) -> bytes:
        told = f"{len(name)}:{name}" + ("" if password is None else f":{password}")
        return hashlib.blake2b(told.encode(), key=self._key, digest_size=32).digest()

    def _remember(self, digest: bytes, tags: tuple[str, ...] | None) -> None:
        self._logins[digest] = tags, trio.current_time() + self._config.auth_http_cache_s
        self._logins.move_to_end(digest)
        while len(self._logins) > self._config.login_memory_entries_max:
            self._logins.popitem(last=False)

    async def _ask_in_turn(self, peer: str, name: str, password: str | None) -> tuple[str, ...] | None:
        config, source = self._config, source_of(peer)
        address = self._addresses.get(source)
        if address is None:
            address = self._addresses[source] = _Address(config.auth_http_logins_per_address_max)
        if address.waiting >= config.password_checks_waiting_max:
            raise TooManyLogins
        address.waiting += 1
        parameters = {"username": name} if password is None else {"username": name, "password": password}
        try:
            with trio.move_on_after(config.auth_http_timeout_s):
                async with address.places, self._login_places:
                    return _tags(await self._answer("user", parameters))
            raise BackendFailed(f"no answer within {config.auth_http_timeout_s} s")
        finally:
            address.waiting -= 1
            if not address.waiting:
                self._addresses.pop(source, None)

    # -- permissions -----------------------------------------------------------------------------------------

    def _ask(self, question: Question, done: Callable[[bool], None]) -> None:
        """Call `done` when the answer has arrived. See broker.access.answers.Ask."""
        assert self._nursery is not None
        asked = self._asked.get(question)
        if asked is None:
            asked = self._asked[question] = _Asked()
            self._nursery.start_soon(self._answer_all, question, asked)
        asked.waiting.append(done)

    async def _answer_all(self, question: Question, asked: _Asked) -> None:
        allowed = False
        try:
            allowed = _is_allowed(await self._answer(question.path, dict(question.parameters)))
            self._answers.remember(question, allowed)
        except BackendFailed as failure:
            self.log_failure(failure, dict(question.parameters)["username"])
        except Exception:
            # Other clients must not suffer, and this one must not wait for ever.
            logger.exception("the HTTP backend could not be asked")
        finally:
            del self._asked[question]
            for done in asked.waiting:
                done(allowed)

    def log_failure(self, failure: BackendFailed, user: str) -> None:
        if self._log_limit.allows("HTTP backend has not answered", "all users"):
            logger.error(
                "the HTTP backend has not answered for user '%s': %s", user, failure, extra={"user": user}
            )

    # -- requests --------------------------------------------------------------------------------------------

    def _url(self, path: str) -> str:
        url: str = getattr(self._config, f"auth_http_{path}_path")
        return url

    async def _answer(self, path: str, parameters: Mapping[str, str]) -> str:
        """Return the server's answer in lower case. Raises BackendFailed."""
        config = self._config
        if self._waiting >= config.auth_http_waiting_max:
            raise BackendFailed("too many requests wait for it (auth_http_waiting_max)")
        self._waiting += 1
        try:
            with trio.move_on_after(config.auth_http_timeout_s):
                async with self._places:
                    return await self._exchange(self._url(path), parameters)
            raise BackendFailed(f"no answer within {config.auth_http_timeout_s} s")
        finally:
            self._waiting -= 1

    async def _exchange(self, url: str, parameters: Mapping[str, str]) -> str:
        client = await self._made()
        import httpx

        form = urlencode(parameters).encode()
        try:
            try:
                return await self._send(client, url, form)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # The server closed a kept connection at the same moment: ask again, since questions change
                # nothing.
                return await self._send(client, url, form)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            raise BackendFailed(_problem(error)) from None

    async def _send(self, client: httpx.AsyncClient, url: str, form: bytes) -> str:
        headers, most = {"accept-encoding": "identity"}, self._config.auth_http_answer_bytes_max
        method, content = "POST", form
        if self._config.auth_http_method == "get":
            method, content = "GET", b""
            url += ("&" if urlsplit(url).query else "?") + form.decode()
        else:
            headers["content-type"] = "application/x-www-form-urlencoded"
        async with streamed(client, method, url, headers, content) as answer:
            if answer.status_code not in GOOD_STATUS:
                raise BackendFailed(f"it answered with status {answer.status_code}")
            text = await body_of(answer, most)
            if text is None:
                raise BackendFailed(f"its answer has more than {most} bytes")
        try:
            return text.decode().strip().lower()
        except UnicodeDecodeError:
            raise BackendFailed("its answer is not UTF-8") from None

    async def _made(self) -> httpx.AsyncClient:
        """Return the HTTP client, made on first use, in a thread, because it reads all authorities of the
        system.
        """
        if self._client is not None:
            return self._client
        async with self._making:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(_make_client, self._config)
        return self._client


def _make_client(config: Config) -> httpx.AsyncClient:
    """Make the HTTP client. Raises BackendFailed."""
    import httpx

    quiet()
    try:
        tls = ssl.create_default_context(cafile=config.auth_http_ca_file or None)
        if config.auth_http_cert_file:
            tls.load_cert_chain(config.auth_http_cert_file, config.auth_http_key_file)
    except OSError as error:
        raise BackendFailed(f"its certificates can't be read: {error}") from None
    most = config.auth_http_requests_max
    return httpx.AsyncClient(
        verify=tls,
        timeout=config.auth_http_timeout_s,
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=KEPT_S),
    )


def _problem(error: Exception) -> str:
    """Describe the error without any content of the question."""
    import httpx

    if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)):
        return "the connection ended before the answer, or the answer is not HTTP"
    return reason(error)


def _tags(answer: str) -> tuple[str, ...] | None:
    """Return the tags of an accepted user. Raises BackendFailed."""
    words = answer.split()
    if not words or words[0] not in (ALLOW, DENY):
        raise BackendFailed("an answer that is neither allow nor deny")
    if words[0] == DENY:
        return None
    return _checked(words[1:])


def _checked(tags: Sequence[str]) -> tuple[str, ...]:
    try:
        return checked_tags(tags)
    except UserRefused as refused:
        raise BackendFailed(str(refused)) from None


def _is_allowed(answer: str) -> bool:
    """Return whether the answer allows the question. Raises BackendFailed."""
    words: list[Any] = answer.split()
    if words[:1] == [DENY]:
        return False
    if words == [ALLOW]:
        return True
    raise BackendFailed("an answer that is neither allow nor deny")
