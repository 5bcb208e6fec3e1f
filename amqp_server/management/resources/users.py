"""Users and their permissions."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.broker.access.password import InvalidPasswordHash, algorithm_of, from_rabbitmq, to_rabbitmq
from amqp_server.broker.access.permissions import InvalidPermission, Permission
from amqp_server.broker.access.users import User, UserRefused, checked_name, checked_tags, hashed
from amqp_server.broker.declared.operations import (
    ClearPermission,
    ClearTopicPermission,
    DeleteUser,
    PutUser,
    SetPermission,
    SetTopicPermission,
)
from amqp_server.config import INTERNAL_BACKEND
from amqp_server.connection.login.password_checks import PasswordChecks
from amqp_server.errors import Unavailable
from amqp_server.management.changes.proposals import propose, propose_all, require_version
from amqp_server.management.changes.proposed_together import AT_ONCE
from amqp_server.management.request.answer import (
    NO_CONTENT,
    Answer,
    Refusal,
    bad_request,
    created,
    known,
    not_found,
    refusing,
)
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from quorum_queue.machine import versions
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.replication import Result

#: Bytes of a password that nobody knows.
RANDOM_PASSWORD_BYTES = 32


def _shown(call: Call, user: User) -> dict[str, Any]:
    """Return the row of a user, without the hash: no caller of this API needs it."""
    return {
        "name": user.name,
        "tags": list(user.tags),
        "hashing_algorithm": to_rabbitmq(user.password_hash)[0] if user.password_hash else "",
        "limits": call.broker.runtime.limits.of_user(user.name),
    }


async def users(call: Call) -> Any:
    return await listing(call, list(call.broker.access.users), partial(_shown, call))


async def users_without_permissions(call: Call) -> Any:
    known = {permission.user for permission in call.broker.access.permissions.all()}
    found = [user for user in call.broker.access.users if user.name not in known]
    return await listing(call, found, partial(_shown, call))


async def user(call: Call) -> Any:
    return _shown(call, _user(call))


class UserRequest(msgspec.Struct):
    """A password, or a hash from RabbitMQ, or an empty one: no login by password. Without any, it stays."""

    password: str | None = None
    password_hash: str | None = None
    #: If it is missing, the length of the hash says which it is.
    hashing_algorithm: str | None = None
    tags: str | list[str] | None = None


async def put_user(call: Call) -> Answer:
    async with call.parts.user_changes:
        return await _put_user(call)


async def _put_user(call: Call) -> Answer:
    name = call.path["user"]
    asked = call.read(UserRequest)
    before = call.broker.access.users.get(name)
    tags = asked.tags.split(",") if isinstance(asked.tags, str) else asked.tags
    if tags is None:
        tags = list(before.tags) if before else []
    with refusing(UserRefused, InvalidPasswordHash):
        checked_name(name)
        told = checked_tags(tag.strip() for tag in tags if tag.strip())
        encoded = await _hash(asked, before, call.parts.password_checks)
        return created(await set_user(call.broker, name, encoded, told, forced=call.switch("force")))


async def _hash(asked: UserRequest, before: User | None, checks: PasswordChecks) -> str:
    if asked.password is not None and asked.password_hash is not None:
        raise UserRefused("both_password_and_password_hash_are_provided")
    if asked.password is not None:
        return await checks.run(hashed, asked.password)
    if asked.password_hash:
        encoded = asked.password_hash
        return from_rabbitmq(asked.hashing_algorithm or algorithm_of(encoded), encoded)
    if asked.password_hash is None and before is not None:
        return before.password_hash
    if asked.password_hash is None:
        # As in RabbitMQ, the user gets a password that nobody knows.
        return await checks.run(hashed, secrets.token_urlsafe(RANDOM_PASSWORD_BYTES))
    return ""


async def set_user(
    broker: Broker, name: str, password_hash: str, tags: Iterable[str], *, forced: bool = False
) -> bool:
    """Return True if the user is new. Raises UserRefused, also for the last administrator unless `forced`."""
    user = broker.access.users.prepare(name, password_hash, tags)
    return (await _change_user(broker, PutUser(user, forced))).changed


async def _change_user(broker: Broker, operation: PutUser | DeleteUser) -> Result:
    result = await propose(broker, operation)
    if result.error:
        raise UserRefused(result.error)
    return result


async def delete_user(call: Call) -> Answer:
    async with call.parts.user_changes:
        await _delete(call, _user(call).name)
    return NO_CONTENT


async def _delete(call: Call, name: str) -> None:
    with refusing(UserRefused):
        await _change_user(call.broker, DeleteUser(name, call.switch("force")))


class BulkDelete(msgspec.Struct):
    users: list[str]


async def delete_users(call: Call) -> Answer:
    names = call.read(BulkDelete).users
    async with call.parts.user_changes:
        unknown = next((name for name in names if call.broker.access.users.get(name) is None), None)
        if unknown is not None:
            raise Refusal(400, "bad_request", ["no_such_user", unknown])
        left = list(dict.fromkeys(names))
        while left:
            await _delete_some(call, left[:AT_ONCE])
            del left[:AT_ONCE]
    return NO_CONTENT


async def _delete_some(call: Call, names: list[str]) -> None:
    forced = call.switch("force")
    for result in await propose_all(call.broker, [DeleteUser(name, forced) for name in names]):
        if isinstance(result, Refused):
            raise Unavailable(result.text)
        with refusing(UserRefused):
            if result.error:
                raise UserRefused(result.error)


class Login(msgspec.Struct):
    password: str


async def authenticate(call: Call) -> Any:
    """Check a user's password. The answer is the same for an unknown user and for a wrong password."""
    password = call.read(Login).password
    name = call.path["user"]
    verified = await call.parts.password_checks.run(call.broker.access.users.verify, name, password)
    if not verified or INTERNAL_BACKEND not in call.parts.config.auth_backends:
        verified = await call.parts.authentication.asked_elsewhere(name, password)
    return {"authenticated": verified}


def _user(call: Call) -> User:
    return known(call.broker.access.users.get(call.path["user"]))


# -- permissions --------------------------------------------------------------------------------


async def permissions(call: Call) -> Any:
    return await listing(call, call.broker.access.permissions.all())


async def permissions_of_user(call: Call) -> Any:
    return await listing(call, call.broker.access.permissions.of_user(_user(call).name))


async def permissions_of_vhost(call: Call) -> Any:
    return await listing(call, call.broker.access.permissions.of_vhost(call.vhost()))


async def permission(call: Call) -> Any:
    return _permission(call)


class PermissionRequest(msgspec.Struct):
    configure: str
    write: str
    read: str


def _places(call: Call) -> tuple[str, str]:
    """Return the vhost and the user that a permission is for."""
    vhost, name = call.path["vhost"], call.path["user"]
    if vhost not in call.broker.vhost_records or call.broker.access.users.get(name) is None:
        raise bad_request("vhost_or_user_not_found")
    return vhost, name


async def put_permission(call: Call) -> Answer:
    vhost, name = _places(call)
    asked = call.read(PermissionRequest)
    with refusing(InvalidPermission):
        return created(
            await set_permission(call.broker, name, vhost, asked.configure, asked.write, asked.read)
        )


async def set_permission(
    broker: Broker, user: str, vhost: str, configure: str, write: str, read: str
) -> bool:
    """Return True if the user had none there. Raises InvalidPermission."""
    permission = broker.access.permissions.prepare(user, vhost, configure, write, read)
    return (await propose(broker, SetPermission(permission))).changed


async def delete_permission(call: Call) -> Answer:
    found = _permission(call)
    await propose(call.broker, ClearPermission(found.user, found.vhost))
    return NO_CONTENT


def _permission(call: Call) -> Permission:
    return known(call.broker.access.permissions.get(_user(call).name, call.vhost()))


# -- topic permissions --------------------------------------------------------------------------


async def topic_permissions(call: Call) -> Any:
    """All topic permissions, or those of the user, the vhost, or both, that the path names."""
    user = _user(call).name if "user" in call.path else None
    vhost = call.vhost() if "vhost" in call.path else None
    found = [
        topic
        for topic in call.broker.access.permissions.topics()
        if user in (None, topic.user) and vhost in (None, topic.vhost)
    ]
    if not found and user is not None and vhost is not None:
        raise not_found()
    return await listing(call, found)


class TopicPermissionRequest(msgspec.Struct):
    exchange: str
    write: str
    read: str


async def put_topic_permission(call: Call) -> Answer:
    vhost, name = _places(call)
    asked = call.read(TopicPermissionRequest)
    with refusing(InvalidPermission):
        return created(
            await set_topic_permission(call.broker, name, vhost, asked.exchange, asked.write, asked.read)
        )


async def set_topic_permission(
    broker: Broker, user: str, vhost: str, exchange: str, write: str, read: str
) -> bool:
    """Return True if the user had none there. Raises InvalidPermission."""
    permission = broker.access.permissions.prepare_topic(user, vhost, exchange, write, read)
    require_version(broker, versions.PARAMETERS)
    return (await propose(broker, SetTopicPermission(permission))).changed


async def delete_topic_permissions(call: Call) -> Answer:
    """Delete the topic permissions of a user in a vhost, or only those for one exchange there."""
    vhost, name = call.vhost(), _user(call).name
    require_version(call.broker, versions.PARAMETERS)
    await propose(call.broker, ClearTopicPermission(name, vhost, call.path.get("exchange", "")))
    return NO_CONTENT
