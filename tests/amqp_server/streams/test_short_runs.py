"""Short runs, as where keys alternate, are encoded together. The bytes are the same as if the messages were
encoded one by one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from amqp_server.streams.layout.encode import SHORT_RUN, Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.wire import content
from amqp_server.wire.frames import short_string
from quorum_queue.machine.run import Attributes, Run

MESSAGE = st.tuples(
    st.sampled_from(["", "k", "l", "long key"]),
    st.sampled_from([b"", b"a", b"b", b"c" * 4100, b"d" * 9000]),
    st.sampled_from([None, "x", "y", "other"]),
)
#: Messages, the channel of their frames, and whether all have one head.
RUN = st.tuples(st.lists(MESSAGE, min_size=1, max_size=5), st.sampled_from([1, 3]), st.booleans())


def item(body: bytes, value: str | None, channel: int) -> bytes:
    headers: dict[str, Any] | None = None if value is None else {"x-stream-filter-value": value}
    payload = header.ContentHeader(0, len(body), commands.Basic.Properties(headers=headers)).marshal()
    return content.build(payload, body, channel, 4096)


@settings(max_examples=150, deadline=None)
@given(st.lists(RUN, min_size=1, max_size=12), st.sampled_from([1, SHORT_RUN]))
def test_together_or_one_by_one(
    runs: list[tuple[list[tuple[str, bytes, str | None]], int, bool]], times: int
) -> None:
    layouts = Layouts()
    together = Encoder(layouts, 250, 7)
    one_by_one: list[bytes] = []
    offset, values = 250, []
    for messages, channel, same in runs:
        if same:
            messages = [messages[0]] * len(messages) * times
        items = [item(body, value, channel) for _, body, value in messages]
        heads = [short_string("x") + short_string(key) for key, _, _ in messages]
        attributes = Attributes(True, 0, None, channel)
        run = Run(range(len(items)), list(items), heads[0], attributes)
        if not same:
            run.heads = list(heads)
        together.add(run)
        for head, each in zip(heads, items, strict=True):
            alone = Encoder(layouts, offset, 7)
            alone.add(Run(range(1), [each], head, attributes))
            (encoded,) = alone.finish()
            one_by_one.append(bytes(encoded.batch.items))
            values += encoded.batch.values
            offset += 1
        assert together.next_offset == offset
    done = together.finish()
    assert b"".join([bytes(each.batch.items) for each in done]) == b"".join(one_by_one)
    assert [each.batch.base for each in done[1:]] == [each.batch.stop for each in done[:-1]]
    found = [
        each.batch.values[number]
        for each in done
        for number in (each.batch.filters or [0] * each.batch.count)
    ]
    assert found == values
