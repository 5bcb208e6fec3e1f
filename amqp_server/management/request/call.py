"""One request, authenticated, as a handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import trio

from amqp_server.broker.access.http_permissions import AnswerAwaited
from amqp_server.broker.access.permissions import Access, Kind, identity_of
from amqp_server.broker.access.users import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER, User
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.errors import AMQPError
from amqp_server.management.request.answer import Refusal, bad_request, not_authorised, not_found, refusal_of
from amqp_server.management.request.memory_budget import Held, Memory
from amqp_server.management.request.questions import Part
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.statistics.stats import Stats

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.management.parts import ManagedParts

#: For each tag that a route requires, the tags that satisfy it.
MAY: Mapping[str, frozenset[str]] = {
    MANAGEMENT: frozenset({MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR}),
    POLICYMAKER: frozenset({POLICYMAKER, ADMINISTRATOR}),
    MONITORING: frozenset({MONITORING, ADMINISTRATOR}),
    ADMINISTRATOR: frozenset({ADMINISTRATOR}),
}

REASON_HEADER = "x-reason"
#: The name of the default exchange in a path, where an empty part cannot be recognised.
DEFAULT_EXCHANGE = "amq.default"

Request = TypeVar("Request", bound=msgspec.Struct)


#: Members of bodies that are tables.
TABLES = ("arguments", "properties")


def _missing(asked: Any, kind: type[msgspec.Struct]) -> str:
    """Return what a body lacks, in RabbitMQ's words."""
    if not isinstance(asked, dict):
        return ""
    names = [
        f"{{key_missing,{field.encode_name}}}"
        for field in msgspec.structs.fields(kind)
        if field.required and field.encode_name not in asked
    ]
    return f"[{','.join(names)}]" if names else ""


class Call:
    def __init__(
        self,
        parts: ManagedParts,
        user: User,
        path: Mapping[str, str],
        query: Mapping[str, str],
        body: bytes,
        slices: Slices,
        filter_ms: int,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        route: str = "",
        local: bool = False,
        everywhere: bool = True,
        scopes: Sequence[str] | None = None,
        part: Part | None = None,
        held: Held | None = None,
    ) -> None:
        """`scopes` are those of the user's token, if there is one. Then the caller has to call `end`."""
        self.parts = parts
        self.broker: Broker = parts.broker
        self._permissions = self.broker.access.permissions
        self.user = user
        self.scopes = scopes
        #: The name under which permissions are looked up.
        self.access = user.name
        if scopes is not None:
            grant = self._permissions.grant_of(user.name, scopes)
            self.access = self._permissions.add_grant(user.name, grant)
        #: Who asks; see permissions.identity_of.
        self.identity = identity_of(user.name, scopes)
        self.path = path
        self.query = query
        self.body = body
        self.slices = slices
        self.filter_ms = filter_ms
        #: Headers by their names in lower case.
        self.headers: Mapping[str, str] = {} if headers is None else headers
        #: Method and path of the route; see endpoints.ENDPOINTS.
        self.method = method
        self.route = route
        #: True if other nodes answer this request, too.
        self.everywhere = everywhere
        #: True if another node asks for this node's part.
        self.local = local
        #: The part of the list that the other node wants; None: all of it.
        self.part = part
        #: The memory that the request and its answer hold.
        self.held = held or Memory(1 << 62).hold(user.name, administrator=True)
        #: Nodes whose part is missing in the answer.
        self.missing: list[str] = []
        self._stats: Stats | None = None

    def end(self) -> None:
        """Called when the call is answered: forget the permissions that its token grants."""
        if self.scopes is not None:
            self._permissions.drop_grant(self.access)

    async def permitted(self, handler: Callable[[Call], Awaitable[Any]]) -> Any:
        """Run the handler. If a permission of a user of the HTTP backend is not known yet, ask the backend
        and run the handler again: handlers check before they change anything.
        """
        while True:
            try:
                return await handler(self)
            except AnswerAwaited as awaited:
                known = trio.Event()
                awaited.begin(known.set)
            await known.wait()

    @property
    def stats(self) -> Stats:
        """Counters and rates, with the samples that the query asks for."""
        if self._stats is None:
            self._stats = Stats(self.parts.sampler, self.query)
        return self._stats

    def may(self, who: str) -> bool:
        return not MAY[who].isdisjoint(self.user.tags)

    def read(self, kind: type[Request]) -> Request:
        """Return the decoded body. RabbitMQ's tools send values in several forms: numbers and switches may
        come as text, and an empty table as an empty array.
        """
        asked: Any = None
        try:
            asked = self._decoded()
            if isinstance(asked, dict):
                for name in TABLES:
                    if asked.get(name) == []:
                        asked[name] = {}
            return msgspec.convert(asked, kind, strict=False)
        except msgspec.ValidationError as failure:
            raise bad_request(_missing(asked, kind) or f"body: {failure}") from None
        except RecursionError:
            raise bad_request("body: objects and arrays are nested too deeply") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as failure:
            raise bad_request(f"body: {failure}") from None

    def asked(self, kind: type[Request]) -> Request:
        """Return the query, whose fields are all optional. Raises Refusal."""
        try:
            return msgspec.convert(dict(self.query), kind, strict=False)
        except msgspec.ValidationError as failure:
            raise bad_request(f"query: {failure}") from None

    def _decoded(self) -> Any:
        """Decode the body. Only a text may be large: many small values take much time, and many times the
        memory of their JSON.

        Raises Refusal, msgspec.MsgspecError, UnicodeDecodeError, RecursionError.
        """
        body, most = self.body or b"{}", self.parts.config.http_json_bytes_max
        if len(body) > most:
            # The body may be something other than an object.
            told = msgspec.json.decode(body, type=dict[str, msgspec.Raw] | None)
            for name, value in (told or {}).items():
                if len(value) > most and memoryview(value)[0] != ord('"'):
                    raise bad_request(f"{name} is larger than {most} bytes")
        return msgspec.json.decode(body)

    def table(self) -> dict[str, Any]:
        """The body, an object with any fields."""
        try:
            asked = self._decoded()
        except RecursionError:
            raise bad_request("body: objects and arrays are nested too deeply") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as failure:
            raise bad_request(f"body: {failure}") from None
        if not isinstance(asked, dict):
            raise bad_request("not_json")
        return asked

    def require_policymaker(self) -> None:
        """Refuse unless the user may set policies in the path's vhost, or in all if the path has none."""
        if self.may(ADMINISTRATOR):
            return
        vhost = self.path.get("vhost")
        if self.may(POLICYMAKER) and (vhost is None or self._permissions.may_open(self.access, vhost)):
            return
        raise not_authorised("User not authorised to access object")

    def require_administrator(self) -> None:
        if not self.may(ADMINISTRATOR):
            raise not_authorised("Not administrator user")

    @property
    def reason(self) -> str:
        """The operator's reason for closing something."""
        return self.headers.get(REASON_HEADER) or self.query.get("reason") or ""

    def flag(self, name: str) -> bool:
        """True if the query sets this name to true."""
        return self.query.get(name) == "true"

    def switch(self, name: str, *, default: bool = False) -> bool:
        # Tools in Python write True and False.
        value = self.query.get(name, str(default)).lower()
        if value not in ("true", "false"):
            raise bad_request(f"{name} must be true or false")
        return value == "true"

    # -- vhosts ----------------------------------------------------------------------------------------------

    def opens(self, vhost: str) -> bool:
        """Whether the user has permissions in the vhost, which tags do not give."""
        return self._permissions.may_open(self.access, vhost)

    def sees(self, vhost: str) -> bool:
        """Whether the user may look into the vhost."""
        return self.may(MONITORING) or self._permissions.may_open(self.access, vhost)

    def visible_vhosts(self) -> list[VhostRecord]:
        visible: list[VhostRecord] = []
        awaited: list[AnswerAwaited] = []
        for vhost in self.broker.vhost_records:
            try:
                if self.sees(vhost.name):
                    visible.append(vhost)
            except AnswerAwaited as one:
                awaited.append(one)
        if awaited:
            # Ask the backend about all vhosts at once.
            raise awaited[0].with_(awaited[1:])
        return visible

    def vhost(self) -> str:
        """The path's vhost, to look at. A vhost that the user may not see is refused even if it does not
        exist.
        """
        name = self.path["vhost"]
        if not self.sees(name):
            raise not_authorised("User not authorised to access virtual host")
        if name not in self.broker.vhost_records:
            raise not_found()
        return name

    def vhosts(self) -> list[str]:
        """The path's vhost, or all that the user may see if the path names none."""
        if "vhost" in self.path:
            return [self.vhost()]
        return [vhost.name for vhost in self.visible_vhosts()]

    def own_vhost(self) -> str:
        """The path's vhost, to change something in it. Administrators may change each vhost: they could give
        themselves the permission.
        """
        name = self.path["vhost"]
        if not (self.may(ADMINISTRATOR) or self._permissions.may_open(self.access, name)):
            raise not_authorised("User not authorised to access virtual host")
        if name not in self.broker.vhost_records:
            raise not_found() if self.method == "DELETE" else Refusal(404, "not_found", "vhost_not_found")
        return name

    def require(self, vhost: str, kind: Kind, name: str, access: Access) -> None:
        """Refuse to change the queue or exchange unless the user may, or is an administrator."""
        if not self.may(ADMINISTRATOR):
            self.require_own(vhost, kind, name, access)

    def require_own(self, vhost: str, kind: Kind, name: str, access: Access) -> None:
        """Refuse unless the user has the permission: tags give no access to messages."""
        try:
            self._permissions.check(self.access, vhost, kind, name, access)
        except AMQPError as error:
            raise refusal_of(error) from None

    def require_topic(self, vhost: str, exchange: str, routing_key: str, access: Access) -> None:
        """Refuse a routing key of a topic exchange unless the user may use it, or is an administrator."""
        if self.may(ADMINISTRATOR):
            return
        try:
            self._permissions.check_topic(self.access, vhost, exchange, routing_key, access)
        except AMQPError as error:
            raise refusal_of(error) from None

    def exchange_name(self, part: str = "name") -> str:
        name = self.path[part]
        return "" if name == DEFAULT_EXCHANGE else name
