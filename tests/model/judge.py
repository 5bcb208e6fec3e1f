"""Runs a program against a broker, and judges what clients see by the model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from tests.model import brokers
from tests.model.brokers import PASSWORD
from tests.model.client import Gone
from tests.model.judging.declaring import permissions_of
from tests.model.judging.requests import OWN
from tests.model.judging.verification import Verification
from tests.model.programs import Step
from tests.model.spec.channels import User
from tests.model.spec.promises import Broken

#: Steps that change what there is, and within which time all nodes of a cluster of the last release know it.
DECLARES = frozenset({"declare", "delete", "exchange", "delete_exchange", "bind", "unbind"})
LEARN_S = 0.1


class Judge(Verification):
    def run(self) -> Broken | None:
        """Return what was wrong, with the step in its text; None if nothing was."""
        self._prepare()
        try:
            for at, step in enumerate(self.program.steps):
                self.at = at
                self._step(step)
            self.at = len(self.program.steps)
            self._verify()
        except Broken as error:
            where = self.program.steps[self.at]["op"] if self.at < len(self.program.steps) else "verification"
            return Broken(f"step {self.at} ({where}): {error}")
        finally:
            self._end()
        return None

    def _prepare(self) -> None:
        api = self.broker.api
        api("PUT", brokers.path("vhosts", self.name), {})
        api("PUT", brokers.path("permissions", self.name, "guest"), permissions_of(User("guest")))
        for user in self.users.values():
            if user.name != "guest":
                api("PUT", brokers.path("users", self._login(user.name)), {"password": PASSWORD, "tags": ""})
                api(
                    "PUT",
                    brokers.path("permissions", self.name, self._login(user.name)),
                    permissions_of(user),
                )

    def _end(self) -> None:
        for client in self.clients.values():
            client.abort()
        with contextlib.suppress(brokers.Refused, OSError, AssertionError):
            self.broker.heal()
            self.broker.api("DELETE", brokers.path("vhosts", self.name))
            for name in self.users:
                if name != "guest":
                    self.broker.api("DELETE", brokers.path("users", self._login(name)))

    def _step(self, step: Step) -> None:
        self.model.begin_step(time.monotonic())
        self.model.tick(time.monotonic())
        self._probe()
        do: Callable[[Step], None] = getattr(self, "_do_" + step["op"])
        if self._out_of_reach(step):
            self.skipped += 1
            return
        try:
            do(step)
        except Gone as gone:
            self._lost(int(step.get("client", OWN)), gone)
        if step["op"] in DECLARES and self.model.broker.old and self.model.broker.nodes > 1:
            # In a cluster of the last release, other nodes learn of it a moment later.
            time.sleep(LEARN_S)
        self._settle()
