import pytest

from amqp_server.broker.declared.vhosts import NoSuchVhost, VhostRefused, Vhosts
from amqp_server.broker.metadata import Metadata
from amqp_server.errors import NotAllowed


def test_vhosts_survive_a_restart(metadata: Metadata) -> None:
    vhosts = Vhosts(metadata)
    assert vhosts.put("/")
    assert vhosts.put("v", "of tests", ("a",))
    assert not vhosts.put("v", "changed", ("a",))
    vhosts.put("gone")
    vhosts.delete("gone")
    again = Vhosts(metadata)
    assert [vhost.name for vhost in again] == ["/", "v"]
    assert again.require("v").description == "changed"


def test_vhosts_that_cannot_be_are_refused(metadata: Metadata) -> None:
    vhosts = Vhosts(metadata, vhosts_max=1)
    vhosts.put("/")
    with pytest.raises(VhostRefused, match="vhosts_max"):
        vhosts.put("v")
    with pytest.raises(NoSuchVhost, match="Virtual host 'v' does not exist"):
        vhosts.delete("v")
    for name in ("", "x" * 256, "a\0"):
        with pytest.raises(VhostRefused, match="name"):
            vhosts.put(name)


def test_opening_a_missing_vhost(metadata: Metadata) -> None:
    with pytest.raises(NotAllowed) as refused:
        Vhosts(metadata).check_open("nope")
    assert refused.value.reply_text() == "NOT_ALLOWED - vhost nope not found"


def test_changes_are_told(metadata: Metadata) -> None:
    changes: list[None] = []
    vhosts = Vhosts(metadata, changed=lambda: changes.append(None))
    vhosts.put("v")
    vhosts.delete("v")
    assert len(changes) == 2
