"""Logins: which users may log in, and to which vhost."""

from collections.abc import Iterator
from contextlib import suppress
from uuid import uuid4

import pytest
from pamqp import commands

from conformance_tests.broker import CtlError
from conformance_tests.conftest import Ctl, Raw
from conformance_tests.wire import RawClient, long_string, raw_method, short_string, table_bytes

REFUSED = r"^ACCESS_REFUSED - Login was refused using authentication mechanism {}. For details see the broker logfile\.$"


@pytest.fixture
def user(ctl: Ctl) -> Iterator[str]:
    """A user whose password is its name, with no permission anywhere."""
    name = f"user-{uuid4().hex[:8]}"
    ctl("add_user", name, name)
    yield name
    with suppress(CtlError):
        ctl("delete_user", name)


@pytest.fixture
def vhost(ctl: Ctl) -> Iterator[str]:
    name = f"vhost-{uuid4().hex[:8]}"
    ctl("add_vhost", name)
    yield name
    with suppress(CtlError):
        ctl("delete_vhost", name)


def login(raw: Raw, **start_ok: object) -> RawClient:
    client = raw(handshake=False)
    client.read_start()
    client.send_start_ok(**start_ok)  # type: ignore[arg-type]
    return client


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_mechanism(raw: Raw, mechanism: str) -> None:
    raw(mechanism=mechanism)


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_wrong_password_with_the_capability_is_a_close_with_403(raw: Raw, mechanism: str) -> None:
    client = login(raw, mechanism=mechanism, password="wrong")
    client.expect_connection_close(403, REFUSED.format(mechanism), (0, 0), end=True)


def test_unknown_user_looks_like_a_wrong_password(raw: Raw) -> None:
    login(raw, user=f"nobody-{uuid4().hex}").expect_connection_close(403, REFUSED.format("PLAIN"), (0, 0))


@pytest.mark.parametrize("password", ["", "guest ", "GUEST", "g" * 1000, "\N{SNOWMAN}"])
def test_password_must_be_exact(raw: Raw, password: str) -> None:
    login(raw, password=password).expect_connection_close(403, REFUSED.format("PLAIN"), (0, 0))


def test_refusals_without_a_word(raw: Raw) -> None:
    """Without `authentication_failure_close`, and for input that is no login at all, the broker just closes
    the socket.
    """
    plain = b"\0guest\0guest"
    cases: list[dict[str, object]] = [
        {"password": "wrong", "capabilities": {}},
        {"password": "wrong", "capabilities": {"authentication_failure_close": False}},
        {"mechanism": "EXTERNAL", "response": b""},
        {"mechanism": "FOO", "response": plain},
        {"mechanism": "", "response": plain},
        {"mechanism": "plain", "response": plain},
        {"response": b""},
        {"response": b"guest"},
        {"response": b"\0guest"},
        {"response": plain + b"\0x"},
        {"mechanism": "AMQPLAIN", "response": b"xxxx"},
        {"mechanism": "AMQPLAIN", "response": table_bytes({"LOGIN": "guest"})[4:]},
        {"mechanism": "AMQPLAIN", "response": table_bytes({"PASSWORD": "guest"})[4:]},
    ]
    clients = [login(raw, **case) for case in cases]
    for case, client in zip(cases, clients, strict=True):
        try:
            client.expect_end()
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{case}: {error}") from error


@pytest.mark.parametrize("vhost", ["no-such-vhost", "", "//", "guest"])
def test_unknown_vhost(raw: Raw, vhost: str) -> None:
    client = raw(handshake=False)
    client.read_start()
    client.send_start_ok()
    client.tune = client.read(commands.Connection.Tune, 0)
    client.send_tune_ok()
    client.send_open(vhost)
    client.expect_connection_close(530, rf"^NOT_ALLOWED - vhost {vhost} not found$", (10, 40))


def open_vhost(raw: Raw, user: str, vhost: str) -> RawClient:
    client = login(raw, user=user, password=user)
    client.tune = client.read(commands.Connection.Tune, 0)
    client.send_tune_ok()
    client.send_open(vhost)
    return client


def test_vhost_without_permission(raw: Raw, user: str) -> None:
    open_vhost(raw, user, "/").expect_connection_close(
        530, rf"^NOT_ALLOWED - access to vhost '/' refused for user '{user}'$", (10, 40)
    )


def test_empty_permissions_let_in(raw: Raw, ctl: Ctl, user: str, vhost: str) -> None:
    ctl("set_permissions", "-p", vhost, user, "", "", "")
    raw(user=user, password=user, vhost=vhost)


def test_cleared_permissions_shut_out(raw: Raw, ctl: Ctl, user: str, vhost: str) -> None:
    ctl("set_permissions", "-p", vhost, user, ".*", ".*", ".*")
    raw(user=user, password=user, vhost=vhost)
    ctl("clear_permissions", "-p", vhost, user)
    open_vhost(raw, user, vhost).expect_connection_close(
        530, f"^NOT_ALLOWED - access to vhost '{vhost}' refused"
    )


def test_vhosts_are_apart(raw: Raw, ctl: Ctl, vhost: str) -> None:
    ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    there, here = raw(vhost=vhost), raw()
    queue = f"apart-{uuid4().hex}"
    there.call(commands.Queue.Declare(queue=queue, exclusive=True), commands.Queue.DeclareOk)
    here.send_method(commands.Queue.Declare(queue=queue, passive=True))
    here.expect_channel_close(404, rf"^NOT_FOUND - no queue '{queue}' in vhost '/'$", method_id=(50, 10))


@pytest.mark.parametrize(
    "exchange", ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]
)
def test_new_vhost_has_the_predeclared_exchanges(raw: Raw, ctl: Ctl, vhost: str, exchange: str) -> None:
    ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    client = raw(vhost=vhost)
    if exchange:
        client.call(commands.Exchange.Declare(exchange=exchange, passive=True), commands.Exchange.DeclareOk)
    else:
        client.publish(b"", routing_key="nowhere", mandatory=True)
        assert client.read(commands.Basic.Return).reply_code == 312


def test_deleted_vhost_closes_its_connections(raw: Raw, ctl: Ctl, vhost: str) -> None:
    ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    client = raw(vhost=vhost)
    ctl("delete_vhost", vhost)
    client.expect_connection_close(
        320, rf"^CONNECTION_FORCED - vhost '{vhost}' is (deleted|down)$", skip=True
    )


# Several starts of a rabbitmqctl, each of which may take many seconds on a busy machine.
@pytest.mark.timeout(300)
def test_deleted_user_is_closed_and_shut_out(raw: Raw, ctl: Ctl, user: str) -> None:
    ctl("set_permissions", user, ".*", ".*", ".*")
    client = raw(user=user, password=user)
    ctl("delete_user", user)
    client.expect_connection_close(320, rf"^CONNECTION_FORCED - user '{user}' is deleted$")
    login(raw, user=user, password=user).expect_connection_close(403, REFUSED.format("PLAIN"))


def test_changed_password(raw: Raw, ctl: Ctl, user: str) -> None:
    ctl("set_permissions", user, ".*", ".*", ".*")
    ctl("change_password", user, "new ✓ password")
    login(raw, user=user, password=user).expect_connection_close(403, REFUSED.format("PLAIN"))
    raw(user=user, password="new ✓ password")


# Several starts of a rabbitmqctl, each of which may take many seconds on a busy machine.
@pytest.mark.timeout(300)
def test_users_and_vhosts_are_listed(ctl: Ctl, user: str, vhost: str) -> None:
    ctl("set_user_tags", user, "management", "monitoring")
    ctl("set_permissions", "-p", vhost, user, "^c", "^w", "^r")
    assert f"{user}\t[management, monitoring]" in ctl("list_users").splitlines()
    assert vhost in ctl("list_vhosts").split()
    assert f"{user}\t^c\t^w\t^r" in ctl("list_permissions", "-p", vhost).splitlines()
    assert f"{vhost}\t^c\t^w\t^r" in ctl("list_user_permissions", user).splitlines()


def test_control_command_checks_passwords(ctl: Ctl, user: str) -> None:
    ctl("authenticate_user", user, user)
    with pytest.raises(CtlError):
        ctl("authenticate_user", user, "wrong")


# Six times the start of a rabbitmqctl, each of which may take many seconds on a busy machine.
@pytest.mark.timeout(300)
def test_control_command_refuses_what_is_there_or_is_not(ctl: Ctl, user: str, vhost: str) -> None:
    for command in (
        ["add_user", user, "x"],
        ["delete_user", "nobody-at-all"],
        ["change_password", "nobody-at-all", "x"],
        ["set_permissions", "-p", vhost, "nobody-at-all", "", "", ""],
        ["set_permissions", "-p", "no-such-vhost", user, "", "", ""],
        ["delete_vhost", "no-such-vhost"],
    ):
        with pytest.raises(CtlError):
            ctl(*command)


def test_update_secret_is_answered(raw: Raw) -> None:
    client = raw()
    client.send(raw_method(10, 70, long_string(b"a new secret") + short_string(b"it was old"), 0))
    client.read(commands.Connection.UpdateSecretOk, 0)
    client.call(commands.Queue.Declare(exclusive=True), commands.Queue.DeclareOk)


def test_update_secret_belongs_on_channel_0(raw: Raw) -> None:
    client = raw()
    client.send(raw_method(10, 70, long_string(b"a new secret") + short_string(b"it was old"), 1))
    client.expect_connection_close(503, r"^COMMAND_INVALID - unimplemented method$", (10, 70))
