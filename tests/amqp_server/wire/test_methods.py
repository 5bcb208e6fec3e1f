"""All methods of AMQP; their bytes and fields are those of pamqp."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands, frame

from amqp_server.errors import FrameError
from amqp_server.wire import frames, methods

#: Methods that a peer may send; Basic.Properties is no method.
KINDS = [kind for kind in commands.INDEX_MAPPING.values() if issubclass(kind, base.Frame)]
#: Tables have one field at most, because pamqp sorts them by name.
FIELDS = {
    "bit": st.booleans(),
    "octet": st.integers(0, 255),
    "short": st.integers(0, 65_535),
    "long": st.integers(0, (1 << 32) - 1),
    "longlong": st.integers(0, (1 << 63) - 1),
    "shortstr": st.text(max_size=60),
    "longstr": st.text(max_size=300),
    "table": st.dictionaries(st.text("abc-", min_size=1, max_size=8), st.booleans() | st.text(max_size=9), max_size=1),
}  # fmt: skip


@st.composite
def methods_of_all_kinds(draw: st.DrawFn) -> base.Frame:
    kind = draw(st.sampled_from(KINDS))
    return methods.make(kind, **{name: draw(FIELDS[kind.amqp_type(name)]) for name in kind.__slots__})


def values(method: base.Frame) -> list[object]:
    """The values of the fields, with texts as bytes: long strings stay bytes here, while pamqp makes text of
    them.
    """
    found = [getattr(method, name) for name in method.__slots__]
    return [value.encode() if isinstance(value, str) else value for value in found]


@settings(max_examples=300, deadline=None)
@given(methods_of_all_kinds())
def test_methods_are_encoded_and_decoded_as_by_pamqp(method: base.Frame) -> None:
    # These tests are not about pamqp's checks of names.
    with patch.object(type(method), "validate", lambda _: None):
        whole = frame.marshal(method, 7)
    assert frames.method_frame(7, method) == whole
    assert values(methods.decode(whole[7:-1])) == values(method)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_bytes_that_are_missing_or_left_over_are_refused(kind: type[base.Frame]) -> None:
    payload = methods.encode(methods.make(kind))
    assert type(methods.decode(payload)) is kind
    with pytest.raises(FrameError):
        methods.decode(payload + b"\x00")
    if kind.__slots__:
        with pytest.raises(FrameError):
            methods.decode(payload[:-1])
