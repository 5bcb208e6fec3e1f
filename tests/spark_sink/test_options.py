"""The meaning of options, and the messages about wrong ones."""

import pickle

import pytest

from spark_sink.client.login import Host
from spark_sink.option_values import BadOption
from spark_sink.options import OPTIONS, batch_options, sink_options, source_options


def test_names_are_case_insensitive_and_every_default_stands() -> None:
    options = sink_options({"ROUTINGKEY": "q", "maxinflight": "7"})
    assert (options.routing_key, options.max_in_flight) == ("q", 7)
    assert (options.delivery, options.mandatory, options.delivery_mode) == ("confirm", True, 2)
    assert options.login.hosts == (Host("localhost", 5672),)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("vHst", "vhost"),
        ("routing_key", "routingKey"),
        ("confirmTimeout", "confirmTimeoutMs"),
        ("tls.ca_file", "tls.caFile"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(BadOption, match=f"no option '{name}'; did you mean '{nearest}'"):
        sink_options({name: "x"})


def test_an_option_near_to_none_lists_them_all() -> None:
    with pytest.raises(BadOption, match=r"no option 'zzzz'; there are url, host, .*routingKey"):
        sink_options({"zzzz": "x"})


def test_what_spark_puts_among_the_options_is_let_through() -> None:
    sink_options({"checkpointLocation": "/somewhere", "queryName": "n"})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("mandatory", "yes", "'mandatory' must be true or false, not 'yes'"),
        ("maxInFlight", "many", "'maxInFlight' must be a whole number, not 'many'"),
        ("maxInFlight", "0", "'maxInFlight' must be between 1 and 1000000, not 0"),
        (
            "delivery",
            "exactly_once",
            "confirm, exactly-once, ledger, tx or none, .*did you mean 'exactly-once'",
        ),
        ("routingKey", "é" * 128, "'routingKey' is longer than 255 bytes"),
        ("txnAppId", "a" * 201, "'txnAppId' is longer than 200 bytes"),
        ("queue", "q", "'queue' has no meaning here: it belongs to what is read"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_option(name: str, value: str, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        sink_options({name: value})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"txnAppId": "a", "delivery": "exactly-once"}, "'txnAppId' and 'txnVersion' belong together"),
        ({"txnAppId": "a", "txnVersion": "1"}, "only with delivery=exactly-once"),
        ({"url": "amqp://h", "vhost": "/"}, "options 'url' and 'vhost' say the same"),
        ({"tls.verify": "false"}, "need TLS"),
        ({"tls": "true", "tls.keyFile": "k"}, "'tls.keyFile' needs 'tls.certFile'"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        sink_options(given)


@pytest.mark.parametrize("delivery", ["exactly-once", "ledger"])
def test_a_batch_that_may_be_repeated_needs_a_name_and_a_version(delivery: str) -> None:
    given = {"delivery": delivery}
    assert sink_options(given).txn_app_id is None  # a stream has its checkpoint
    with pytest.raises(
        BadOption, match=f"delivery={delivery} of a batch needs the options 'txnAppId', .*'txnVersion'"
    ):
        batch_options(given)
    assert batch_options({**given, "txnAppId": "a", "txnVersion": "1"}).txn_version == 1
    assert batch_options({}).delivery == "confirm"


@pytest.mark.parametrize(
    ("url", "hosts", "vhost"),
    [
        ("amqp://h", (Host("h", 5672),), "/"),
        ("amqps://h/", (Host("h", 5671),), "/"),
        ("amqp://u:p@h:1,i,j:3/v", (Host("h", 1), Host("i", 5672), Host("j", 3)), "v"),
        ("amqp://u:p@h:1/v, amqp://u:p@i:2/v", (Host("h", 1), Host("i", 2)), "v"),
        ("amqp://[::1]:7/a%2Fb", (Host("::1", 7),), "a/b"),
    ],
)
def test_urls(url: str, hosts: tuple[Host, ...], vhost: str) -> None:
    login = sink_options({"url": url}).login
    assert (login.hosts, login.vhost) == (hosts, vhost)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://h", "must begin with amqp://"),
        ("h:5672", "must begin with amqp://"),
        ("amqp://", "names no host"),
        ("amqp://u:secret@h:port/", "a host that cannot be read: 'h:port'"),
        ("amqp://h/a/b", "write it as %2F"),
        ("amqp://h?heartbeat=1", "options of their own"),
        ("amqp://u:secret@h/,amqp://v:secret@i/", "the same scheme, user, password and vhost"),
    ],
)
def test_wrong_urls_are_told_apart_and_show_no_password(url: str, text: str) -> None:
    with pytest.raises(BadOption, match=text) as caught:
        sink_options({"url": url})
    assert "secret" not in str(caught.value)


def test_user_and_password_as_options_beat_the_url() -> None:
    login = sink_options({"url": "amqp://u:p%40@h", "password": "other"}).login
    assert (login.username, login.password) == ("u", "other")
    assert "other" not in repr(login)


def test_several_hosts_without_a_url() -> None:
    login = sink_options({"host": "a,b:7", "port": "9", "vhost": "v/w", "tls": "true"}).login
    assert (login.hosts, login.vhost, login.tls is not None) == ((Host("a", 9), Host("b", 7)), "v/w", True)


def test_a_source_needs_a_queue() -> None:
    with pytest.raises(BadOption, match="option 'queue' is missing"):
        source_options({})
    assert source_options({"queue": "q"}).ack == "none"


def test_options_travel_to_the_tasks() -> None:
    options = sink_options({"url": "amqps://u:p@h", "tls.verify": "false"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_is_declared_once_and_says_what_it_means() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(names) == len(set(names))
    assert all(option.meaning and option.sides for option in OPTIONS)
