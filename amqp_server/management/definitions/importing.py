"""Imports definitions of RabbitMQ or of mqd: makes objects that are missing; objects that exist stay as they
are or are replaced.

As in RabbitMQ, queues, exchanges and bindings that exist stay as they are; users, permissions, policies and
parameters are replaced. Objects that have no counterpart here are skipped and noted. Queues, exchanges and
bindings are declared as by clients. Several objects are made at a time: in a cluster each takes a round of
its nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pamqp import base, commands

from amqp_server.broker.access.password import InvalidPasswordHash, from_rabbitmq
from amqp_server.broker.access.permissions import ITSELF, InvalidPermission
from amqp_server.broker.access.users import UserRefused, checked_name, checked_tags, hashed
from amqp_server.broker.declared.argument_table import not_replicated
from amqp_server.broker.declared.operations import (
    ProtectQueue,
    PutParameter,
    PutUser,
    SetPermission,
    SetTopicPermission,
)
from amqp_server.broker.declared.parameters import (
    GLOBAL,
    OPERATOR_POLICY,
    POLICY,
    SHOVEL,
    USER_LIMITS,
    VHOST_LIMITS,
    NoRoomForParameter,
    ParameterRecord,
    ParameterRefused,
)
from amqp_server.broker.declared.policy import KEYS
from amqp_server.broker.declared.queue_types import CLASSIC, QUEUE_TYPES, QueueType
from amqp_server.broker.declared.vhosts import VhostRefused
from amqp_server.broker.topology.limits import LIMITS, OF_USERS, problem
from amqp_server.broker.topology.super_streams import PARTITIONS
from amqp_server.errors import AMQPError
from amqp_server.management.changes.internal_session import Direct
from amqp_server.management.changes.parallel_sessions import Asked, Together
from amqp_server.management.changes.proposals import require_version
from amqp_server.management.changes.proposed_together import ProposedTogether
from amqp_server.management.request.answer import bad_request
from amqp_server.management.request.time_slices import Rest
from amqp_server.management.resources import shovels
from amqp_server.management.resources.vhosts import create_vhost
from amqp_server.wire import methods
from exchanges.registry import EXCHANGE_TYPES
from exchanges.super_stream import SUPER_STREAM
from quorum_queue.machine.versions import PARAMETERS, PAUSES

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.management.parts import ManagedParts

Item = dict[str, Any]

#: Sections of the definitions of one vhost; those of a broker have all of SECTIONS.
OF_A_VHOST = ("exchanges", "parameters", "policies", "queues", "bindings")
SECTIONS = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "exchanges",
    "global_parameters",
    "policies",
    "parameters",
    "queues",
    "bindings",
)
#: Names that clients cannot declare; exchanges that RabbitMQ makes for itself, such as that of its log.
RESERVED, OF_RABBITMQ = "amq.", "amq.rabbitmq."
SHA256, MD5 = "rabbit_password_hashing_sha256", "rabbit_password_hashing_md5"
#: From this version of RabbitMQ on, a hash without an algorithm is a SHA-256 hash.
SHA256_SINCE = (3, 6)


class _Wrong(Exception):
    """An item that cannot be imported."""


class Import:
    def __init__(self, parts: ManagedParts, rest: Rest) -> None:
        """`rest` is called between two short steps."""
        self._parts = parts
        self._broker = parts.broker
        self._rest = rest
        self._together = ProposedTogether(parts.broker, parts.user_changes)
        self._version: tuple[int, ...] = SHA256_SINCE
        #: Objects that have no counterpart here: section, vhost, name and reason.
        self.skipped: list[dict[str, str]] = []

    async def run(self, told: Mapping[str, Any], vhost: str | None = None) -> None:
        """Import definitions of the broker, or of one vhost. Raises Refusal."""
        wanted = SECTIONS if vhost is None else OF_A_VHOST
        sections = {name: await self._items(told, name, vhost) for name in wanted}
        if vhost is not None:
            for name in SECTIONS:
                if name not in OF_A_VHOST and told.get(name):
                    self._skip(name, {}, "not a part of definitions of one virtual host")
        for name in told:
            if name not in SECTIONS and isinstance(told[name], list) and told[name]:
                self._skip(name, {}, "unknown here")
        self._version = _version(told)
        await self._in_order("users", sections, self._user)
        await self._in_order("vhosts", sections, self._vhost)
        await self._in_order("permissions", sections, self._permission)
        await self._in_order("topic_permissions", sections, self._topic_permission)
        await self._several("exchanges", sections["exchanges"], self._exchange)
        await self._in_order("global_parameters", sections, self._global_parameter)
        await self._in_order("policies", sections, self._policy)
        await self._in_order("parameters", sections, self._parameter)
        # A consumer group reads a stream, which must exist first.
        others: list[Item] = []
        groups: list[Item] = []
        for item in sections["queues"]:
            await self._rest()
            (groups if _is_group(item) else others).append(item)
        await self._several("queues", others, self._queue)
        await self._several("queues", groups, self._queue)
        await self._in_order("queues", sections, self._protection)
        await self._several("bindings", sections["bindings"], self._binding)

    async def _items(self, told: Mapping[str, Any], section: str, vhost: str | None) -> list[Item]:
        """Return the items of a section. Raises Refusal."""
        found = told.get(section) or []
        items: list[Item] = []
        for item in found if isinstance(found, list) else (None,):
            await self._rest()
            if not isinstance(item, dict):
                raise bad_request(f"{section} must be a list of objects")
            items.append(item if vhost is None else {**item, "vhost": vhost})
        return items

    def _skip(self, section: str, item: Mapping[str, Any], why: str) -> None:
        name = item.get("name", item.get("user", item.get("source", "")))
        self.skipped.append(
            {"section": section, "vhost": str(item.get("vhost", "")), "name": str(name), "reason": why}
        )

    async def _in_order(
        self, section: str, sections: Mapping[str, list[Item]], take: Callable[[Item], Awaitable[None]]
    ) -> None:
        try:
            for item in sections.get(section, ()):
                await self._rest()
                with _naming(section, item):
                    await take(item)
        finally:
            # What came before an item that is refused is made.
            await self._together.finish()

    async def _several(
        self, section: str, items: Iterable[Item], method_of: Callable[[Item], base.Frame | None]
    ) -> None:
        """Declare these items, each by an AMQP method."""
        with Together(self._broker.turn, lambda vhost: Direct(self._broker, vhost, ITSELF)) as together:
            await together.ask(self._asked(section, items, method_of), self._rest)

    def _asked(
        self, section: str, items: Iterable[Item], method_of: Callable[[Item], base.Frame | None]
    ) -> Iterator[Asked | None]:
        for item in items:
            naming = _naming(section, item)
            with naming:
                vhost, method = self._vhost_of(item), method_of(item)
            yield None if method is None else Asked(vhost, method, naming)

    def _vhost_of(self, item: Item) -> str:
        vhost = _text(item, "vhost")
        if vhost not in self._broker.vhost_records:
            raise _Wrong(f"Virtual host '{vhost}' does not exist")
        return vhost

    # -- users and vhosts ------------------------------------------------------------------------------------

    async def _user(self, item: Item) -> None:
        broker, name = self._broker, checked_name(_text(item, "name"))
        tags = _tags(item.get("tags"))
        encoded = await self._hash(item)
        if encoded is None:
            self._skip("users", item, f"hashing algorithm {item.get('hashing_algorithm')} is not supported")
            return
        user = broker.access.users.prepare(name, encoded, checked_tags(tags))
        await self._together.add(PutUser(user), _naming("users", item))
        limits = _object(item.get("limits"))
        if limits:
            reason = problem(limits, OF_USERS, USER_LIMITS)
            if reason is not None:
                raise _Wrong(reason)
            record = broker.runtime.parameters.prepare(GLOBAL, USER_LIMITS, name, limits)
            await self._set("users", item, record)

    async def _hash(self, item: Item) -> str | None:
        """Return the hash to store; None if its algorithm is not known here."""
        encoded = _text_or_none(item, "password_hash")
        algorithm = _text_or_none(item, "hashing_algorithm")
        if encoded is None and isinstance(item.get("password"), str):
            return await self._parts.password_checks.run(hashed, item["password"])
        if not encoded:
            return ""
        default = SHA256 if self._version >= SHA256_SINCE else MD5
        try:
            return from_rabbitmq(algorithm or default, encoded)
        except InvalidPasswordHash as invalid:
            if "not supported" in str(invalid):
                return None
            raise

    async def _vhost(self, item: Item) -> None:
        """If the vhost exists, fields that the item lacks keep their values."""
        broker, name = self._broker, _text(item, "name")
        before, metadata = broker.vhost_records.get(name), item.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise _Wrong("metadata must be an object")
        # Clients write null for what a vhost does not have.
        told = {key: value for key, value in {**metadata, **item}.items() if value is not None}
        fields = {"description", "tags", "default_queue_type", "protected_from_deletion"}
        if before is not None and not told.keys() & fields:
            return
        tags = _tags(told["tags"]) if "tags" in told else before.tags if before else ()
        type_ = _text_or_none(told, "default_queue_type")
        if type_ is None:
            type_ = before.default_queue_type if before else ""
        type_ = "" if type_ == "undefined" else type_.removeprefix("rabbit_").removesuffix("_queue")
        if type_ and type_ not in QUEUE_TYPES:
            self._skip("vhosts", item, f"default queue type {type_} is not supported")
            type_ = ""
        description = _text_or_none(told, "description")
        if description is None:
            description = before.description if before else ""
        protected = told.get("protected_from_deletion")
        if protected is not None and not isinstance(protected, bool):
            raise _Wrong("protected_from_deletion must be true or false")
        await create_vhost(broker, name, description, tuple(tags), type_, protected=protected)

    async def _permission(self, item: Item) -> None:
        vhost, user = self._vhost_of(item), self._user_of(item)
        configure, write, read = (_text(item, key) for key in ("configure", "write", "read"))
        permission = self._broker.access.permissions.prepare(user, vhost, configure, write, read)
        await self._together.add(SetPermission(permission), _naming("permissions", item))

    async def _topic_permission(self, item: Item) -> None:
        vhost, user = self._vhost_of(item), self._user_of(item)
        exchange, write, read = (_text(item, key) for key in ("exchange", "write", "read"))
        topic = self._broker.access.permissions.prepare_topic(user, vhost, exchange, write, read)
        require_version(self._broker, PARAMETERS)
        await self._together.add(SetTopicPermission(topic), _naming("topic_permissions", item))

    def _user_of(self, item: Item) -> str:
        user = _text(item, "user")
        if self._broker.access.users.get(user) is None:
            raise _Wrong(f'User "{user}" does not exist')
        return user

    # -- parameters ------------------------------------------------------------------------------------------

    async def _global_parameter(self, item: Item) -> None:
        broker = self._broker
        record = broker.runtime.parameters.prepare(GLOBAL, GLOBAL, _text(item, "name"), item.get("value"))
        await self._set("global_parameters", item, record)

    async def _set(self, section: str, item: Item, record: ParameterRecord) -> None:
        await self._together.add(PutParameter(record), _naming(section, item))

    async def _policy(self, item: Item) -> None:
        await self._set_policy(item, item, operator=False)

    async def _set_policy(self, item: Item, value: Mapping[str, Any], *, operator: bool) -> None:
        broker, section = self._broker, "parameters" if operator else "policies"
        vhost, name = self._vhost_of(item), _text(item, "name")
        definition = _object(value.get("definition"))
        if isinstance(definition, dict):
            known = {
                key: told
                for key, told in definition.items()
                if key in KEYS and (KEYS[key].operators or not operator)
            }
            for key in sorted(definition.keys() - known.keys()):
                why = "is not for operator policies" if key in KEYS else "does not exist in mqd"
                self._skip(section, item, f"{key} {why}")
            if definition and not known:
                return
            definition = known
        record = broker.runtime.policies.prepare(
            vhost,
            name,
            pattern=value.get("pattern"),
            definition=definition,
            priority=value.get("priority", 0),
            apply_to=value.get("apply-to", "all"),
            operator=operator,
        )
        await self._set(section, item, record)

    async def _parameter(self, item: Item) -> None:
        vhost, component, value = self._vhost_of(item), _text(item, "component"), item.get("value")
        value = _object(value)
        told = value if isinstance(value, dict) else {}
        if component == OPERATOR_POLICY:
            await self._set_policy(item, told, operator=True)
        elif component == POLICY:
            await self._set_policy(item, told, operator=False)
        elif component == VHOST_LIMITS:
            reason = problem(value or {}, frozenset(told), LIMITS)
            if reason is not None:
                raise _Wrong(reason)
            record = self._broker.runtime.parameters.prepare(vhost, component, LIMITS, told)
            await self._set("parameters", item, record)
        elif component == SHOVEL:
            # It is counted against a limit of its own.
            await self._together.finish()
            try:
                record = shovels.prepared(self._broker, vhost, _text(item, "name"), told or value)
            except NoRoomForParameter:
                raise
            except ParameterRefused as refused:
                self._skip("parameters", item, str(refused))
            else:
                await self._set("parameters", item, record)
        else:
            self._skip("parameters", item, f"component {component} does not exist in mqd")

    # -- what clients declare --------------------------------------------------------------------------------

    def _exchange(self, item: Item) -> base.Frame | None:
        vhost, name, type_ = item["vhost"], _text(item, "name"), _text(item, "type")
        if not name or self._has_exchange(vhost, name) or name.startswith(OF_RABBITMQ):
            return None
        if name.startswith(RESERVED):
            self._skip("exchanges", item, "names that begin with amq. are reserved")
            return None
        if type_ not in EXCHANGE_TYPES:
            self._skip("exchanges", item, f"exchange type {type_} is not supported")
            return None
        return methods.make(
            commands.Exchange.Declare,
            exchange=name,
            exchange_type=type_,
            durable=_switch(item, "durable", default=True),
            auto_delete=_switch(item, "auto_delete"),
            internal=_switch(item, "internal"),
            arguments=_table(item),
        )

    def _queues(self, vhost: str) -> Mapping[str, Queue]:
        return self._broker.vhost(vhost).queues

    def _has_exchange(self, vhost: str, name: str) -> bool:
        return self._broker.vhost(vhost).router.get(name) is not None

    def _queue(self, item: Item) -> base.Frame | None:
        vhost, name, arguments = item["vhost"], _text(item, "name"), _table(item)
        if name in self._queues(vhost):
            return None
        if name.startswith(RESERVED):
            # Named by a broker for a client that is gone.
            self._skip("queues", item, "names that begin with amq. are reserved")
            return None
        type_of_item = _text_or_none(item, "type")
        if type_of_item is not None and QUEUE_TYPES.get(type_of_item) is not CLASSIC:
            arguments = {"x-queue-type": type_of_item} | arguments
        type_ = arguments.get("x-queue-type")
        if isinstance(type_, str) and type_ not in QUEUE_TYPES:
            self._skip("queues", item, f"queue type {type_} is not supported")
            return None
        kind, clustered = _type_of(arguments), self._parts.administration is not None
        if clustered and kind.is_group:
            stream = arguments.get("x-stream")
            if (
                isinstance(stream, str)
                and stream not in self._queues(vhost)
                and not self._has_exchange(vhost, stream)
            ):
                # The stream was skipped.
                self._skip("queues", item, f"there is no stream '{stream}'")
                return None
        unknown = not_replicated(arguments, self._broker.replication.version)
        if clustered and kind.is_stream and unknown is not None:
            self._skip("queues", item, f"streams in a cluster do not support '{unknown}'")
            return None
        return methods.make(
            commands.Queue.Declare,
            queue=name,
            durable=_switch(item, "durable", default=True),
            auto_delete=_switch(item, "auto_delete"),
            arguments=arguments,
        )

    async def _protection(self, item: Item) -> None:
        if not _switch(item, "protected_from_deletion"):
            return
        queue = self._queues(item["vhost"]).get(_text(item, "name"))
        if queue is None or queue.record.protected_from_deletion:
            return
        if self._broker.replication.version < PAUSES:
            self._skip(
                "queues", item, "its protection needs a cluster whose nodes all run this version of mqd"
            )
            return
        protected = ProtectQueue(item["vhost"], queue.name, queue.queue_id, True)
        await self._together.add(protected, _naming("queues", item))

    def _binding(self, item: Item) -> base.Frame | None:
        vhost, source, destination = item["vhost"], _text(item, "source"), _text(item, "destination")
        kind, routing_key = _text(item, "destination_type"), _text(item, "routing_key")
        if not source:
            return None
        for end in (source, destination if kind == "exchange" else source):
            if not self._has_exchange(vhost, end):
                self._skip("bindings", item, f"there is no exchange '{end}'")
                return None
        found = self._broker.vhost(vhost).router.get(source)
        if found is not None and found.type == SUPER_STREAM and PARTITIONS in found.arguments:
            # A declared super stream has bound its partitions already.
            return None
        if kind == "queue":
            if destination not in self._queues(vhost):
                self._skip("bindings", item, f"there is no queue '{destination}'")
                return None
            return methods.make(
                commands.Queue.Bind,
                queue=destination,
                exchange=source,
                routing_key=routing_key,
                arguments=_table(item),
            )
        if kind != "exchange":
            raise _Wrong(f"destination_type is {kind}, not queue or exchange")
        return methods.make(
            commands.Exchange.Bind,
            destination=destination,
            source=source,
            routing_key=routing_key,
            arguments=_table(item),
        )


class _naming(AbstractContextManager[None]):
    """Turns an error of an item into a refusal that names the item."""

    def __init__(self, section: str, item: Item) -> None:
        self._section = section
        self._item = item

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AMQPError):
            reason = error.text
        elif isinstance(
            error,
            (_Wrong, ParameterRefused, UserRefused, VhostRefused, InvalidPasswordHash, InvalidPermission),
        ):
            reason = str(error)
        else:
            return
        item = self._item
        name = item.get("name", item.get("user", f"{item.get('source')} to {item.get('destination')}"))
        place = f" in vhost '{item['vhost']}'" if "vhost" in item else ""
        raise bad_request(f"{self._section}: '{name}'{place}: {reason}") from None


def _version(told: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the version of the RabbitMQ that these definitions come from; today's if they come from
    elsewhere.
    """
    text = str(told.get("rabbitmq_version", told.get("rabbit_version", "")))
    product = told.get("product_name", "RabbitMQ")
    parts = text.split(".")[:2]
    if product != "RabbitMQ" or len(parts) < 2 or not all(part.isdigit() for part in parts):
        return SHA256_SINCE
    return tuple(map(int, parts))


def _object(value: object) -> object:
    """`rabbitmqctl export_definitions` writes some objects as arrays of pairs."""
    if isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
    ):
        return dict(value)
    return value


def _text(item: Item, key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise _Wrong(f"{key} is missing" if value is None else f"{key} must be a text")
    return value


def _text_or_none(item: Mapping[str, Any], key: str) -> str | None:
    """Return the text of a field that may be absent or null."""
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise _Wrong(f"{key} must be a text")
    return value


def _tags(told: object) -> list[str]:
    """Return the tags of a user or a vhost. Earlier versions of RabbitMQ write them as one text."""
    tags = told.split(",") if isinstance(told, str) else [] if told is None else told
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _Wrong("tags must be a list of texts")
    return [tag.strip() for tag in tags if tag.strip()]


def _is_group(item: Item) -> bool:
    arguments = item.get("arguments")
    return isinstance(arguments, dict) and _type_of(arguments).is_group


def _type_of(arguments: Mapping[str, Any]) -> QueueType:
    """Return the type that a queue with these arguments has; classic for one that is not known here."""
    name = arguments.get("x-queue-type")
    return QUEUE_TYPES.get(name, CLASSIC) if isinstance(name, str) else CLASSIC


def _switch(item: Item, key: str, *, default: bool = False) -> bool:
    value = item.get(key, default)
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise _Wrong(f"{key} must be true or false")
    return value


def _table(item: Item) -> dict[str, Any]:
    """Clients write an empty table as an empty array."""
    arguments = item.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise _Wrong("arguments must be an object")
    return arguments
