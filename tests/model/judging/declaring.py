"""Steps that declare, bind and delete, and those of operators."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from pamqp import commands

from tests.model import brokers
from tests.model.client import Gone, wait_readable
from tests.model.judging.requests import OWN, Requests
from tests.model.programs import Step
from tests.model.spec.channels import Channel, User
from tests.model.spec.promises import NOT_FOUND, Broken, Promise
from tests.model.spec.queues import Queue
from tests.model.spec.routing import Binding
from tests.model.spec.settings import Policy


class Declaring(Requests):
    def _do_declare(self, step: Step) -> None:
        number, channel = self._channel(step)
        arguments = dict(step.get("arguments", {}))
        shape = {name: step.get(name, name == "durable") for name in ("durable", "exclusive", "auto_delete")}
        promise = self.model.declare_queue(channel, step["queue"], step["kind"], arguments=arguments, **shape)
        table = arguments | {"x-queue-type": step["kind"]}
        method = commands.Queue.Declare(queue=step["queue"], arguments=table, **shape)
        self._call(number, channel.number, method, commands.Queue.DeclareOk, promise)

    def _do_count(self, step: Step) -> None:
        number, channel = self._channel(step)
        promise = self.model.declare_queue(channel, step["queue"], "", passive=True)
        method = commands.Queue.Declare(queue=step["queue"], passive=True)
        self._call(number, channel.number, method, commands.Queue.DeclareOk, promise)

    def _do_delete(self, step: Step) -> None:
        number, channel = self._channel(step)
        conditions = {name: step.get(name, False) for name in ("if_unused", "if_empty")}
        promise = self.model.delete_queue(channel, step["queue"], **conditions)
        self._call(
            number,
            channel.number,
            commands.Queue.Delete(queue=step["queue"], **conditions),
            commands.Queue.DeleteOk,
            promise,
        )

    def _do_purge(self, step: Step) -> None:
        number, channel = self._channel(step)
        promise = self.model.purge(channel, step["queue"])
        self._call(
            number, channel.number, commands.Queue.Purge(queue=step["queue"]), commands.Queue.PurgeOk, promise
        )

    def _do_exchange(self, step: Step) -> None:
        number, channel = self._channel(step)
        shape = {name: step.get(name, name == "durable") for name in ("durable", "auto_delete", "internal")}
        arguments = dict(step.get("arguments", {}))
        promise = self.model.declare_exchange(
            channel, step["exchange"], step["kind"], arguments=arguments, **shape
        )
        method = commands.Exchange.Declare(
            exchange=step["exchange"], exchange_type=step["kind"], arguments=arguments, **shape
        )
        self._call(number, channel.number, method, commands.Exchange.DeclareOk, promise)

    def _do_delete_exchange(self, step: Step) -> None:
        number, channel = self._channel(step)
        unused = step.get("if_unused", False)
        promise = self.model.delete_exchange(channel, step["exchange"], if_unused=unused)
        method = commands.Exchange.Delete(exchange=step["exchange"], if_unused=unused)
        self._call(number, channel.number, method, commands.Exchange.DeleteOk, promise)

    def _do_bind(self, step: Step) -> None:
        self._binding(step, self.model.bind, commands.Queue.Bind, commands.Exchange.Bind)

    def _do_unbind(self, step: Step) -> None:
        self._binding(step, self.model.unbind, commands.Queue.Unbind, commands.Exchange.Unbind)

    def _binding(
        self, step: Step, ask: Callable[[Channel, Binding], Promise], queue: Any, exchange: Any
    ) -> None:
        number, channel = self._channel(step)
        arguments = dict(step.get("arguments", {}))
        kind = "exchange" if step.get("to_exchange") else "queue"
        binding = Binding(
            step["source"], kind, step["destination"], step["key"], tuple(sorted(arguments.items()))
        )
        promise = ask(channel, binding)
        common = {"routing_key": step["key"], "arguments": arguments}
        if kind == "queue":
            method = queue(queue=step["destination"], exchange=step["source"], **common)
            answer: Any = (commands.Queue.BindOk, commands.Queue.UnbindOk)
        else:
            method = exchange(destination=step["destination"], source=step["source"], **common)
            answer = (commands.Exchange.BindOk, commands.Exchange.UnbindOk)
        self._call(number, channel.number, method, answer, promise)

    def _do_policy(self, step: Step) -> None:
        policy = Policy(
            step["name"], step["pattern"], step["apply_to"], step.get("priority", 0), step["definition"]
        )
        operator = step.get("operator", False)
        body = {
            "pattern": policy.pattern,
            "definition": policy.definition,
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        where = brokers.path("operator-policies" if operator else "policies", self.name, policy.name)
        if self._is_refused_before_the_upgrade("PUT", where, body):
            return
        self.broker.api("PUT", where, body)
        self.model.now = time.monotonic()
        self.model.set_policy(policy, operator=operator)

    def _is_refused_before_the_upgrade(self, method: str, path: str, body: Any) -> bool:
        """Until all nodes know it, an operator can't use what is new. Return True if that is so."""
        if not self.model.broker.old:
            return False
        try:
            self.broker.api(method, path, body)
        except brokers.Refused:
            return True
        raise Broken(f"{method} {path} was accepted before all nodes were upgraded")

    def _do_clear_policy(self, step: Step) -> None:
        with contextlib.suppress(brokers.Refused):
            self.broker.api("DELETE", brokers.path("policies", self.name, step["name"]))
        self.model.clear_policy(step["name"])

    def _do_pause(self, step: Step) -> None:
        self._pause(step["queue"], step["what"], paused=True)

    def _do_resume(self, step: Step) -> None:
        self._pause(step["queue"], step["what"], paused=False)

    def _pause(self, name: str, what: str, *, paused: bool) -> None:
        verb = "pause" if paused else "resume"
        where = brokers.path("queues", self.name, name, verb)
        if self._is_refused_before_the_upgrade("PUT", where, {what: True}):
            return
        try:
            self.broker.api("PUT", where, {what: True})
        except brokers.Refused as error:
            queue = self.model.queues.get(name)
            if error.status != NOT_FOUND or (
                isinstance(queue, Queue) and queue.certain and not self._lease_ended()
            ):
                raise Broken(f"{name}: {verb}: {error}") from None
            return
        self.model.now = time.monotonic()
        self.model.pause(name, what, paused=paused)

    def _do_protect(self, step: Step) -> None:
        if self.broker.product != "mqd":
            self.skipped += 1
            return
        name, protected = step["queue"], step["protected"]
        where = brokers.path("queues", self.name, name, "deletion", "protection")
        try:
            self.broker.api("POST" if protected else "DELETE", where)
        except brokers.Refused as error:
            queue = self.model.queues.get(name)
            if error.status != NOT_FOUND or (queue is not None and queue.certain and not self._lease_ended()):
                raise Broken(f"{name}: protection from deletion: {error}") from None
            return
        self.model.now = time.monotonic()
        self.model.protect(name, protected=protected)

    def _do_permissions(self, step: Step) -> None:
        user = self.users.get(step["user"])
        if user is None or user.name == "guest":
            return
        user.permissions = tuple(step["permissions"])
        self.broker.api(
            "PUT", brokers.path("permissions", self.name, self._login(user.name)), permissions_of(user)
        )
        self.model.permissions_changed()

    def _do_limit(self, step: Step) -> None:
        what = step["what"]
        if what == "channels":
            user = self.users.get(step["user"])
            if user is None or user.name == "guest":
                return
            limits = brokers.path("user-limits", self._login(user.name), "max-channels")
            self.broker.api("PUT", limits, {"value": step["value"]})
            user.channels_max = step["value"] if step["value"] >= 0 else None
            return
        where = brokers.path("vhost-limits", self.name, f"max-{what}")
        if self._is_refused_before_the_upgrade("PUT", where, {"value": step["value"]}):
            return
        if what == "connections":
            self._client(OWN)
        value = step["value"] if what == "queues" or step["value"] < 0 else len(self.sessions) + step["value"]
        self.broker.api("PUT", where, {"value": value})
        if what == "queues":
            self.model.queues_max = value
        else:
            self.model.connections_max = value if step["value"] >= 0 else None

    def _do_connect(self, step: Step) -> None:
        with contextlib.suppress(Gone):
            self._client(step["client"])

    def _do_wait(self, step: Step) -> None:
        """Let time pass, and look at what comes."""
        ends = time.monotonic() + step["ms"] / 1000
        while (left := ends - time.monotonic()) > 0:
            wait_readable(self.clients.values(), left)
            self._handle_events()
            self.model.tick(time.monotonic())


def permissions_of(user: User) -> dict[str, str]:
    configure, write, read = user.permissions
    return {"configure": configure, "write": write, "read": read}
