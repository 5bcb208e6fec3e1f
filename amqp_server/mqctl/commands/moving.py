"""Messages moved to another queue, copied, purged, and written to files and back."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, cast

import click

from amqp_server.mqctl.client import DATA_ERROR, UNAVAILABLE, USAGE, Failure
from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.files import STDIO, private
from amqp_server.mqctl.looking import conditions, pages, ready, seen
from amqp_server.mqctl.looking import waiting as waiting_option
from amqp_server.mqctl.progress import progress

#: Messages that one request moves, at most.
MOVED_AT_ONCE = 10_000
#: Lines, and about how many bytes, that one request imports; one line at least.
LINES_AT_ONCE, BYTES_AT_ONCE = 1_000, 1 << 20
#: The longest line: the largest message in Base64, and its properties.
LINE_BYTES_MAX = 192 << 20
#: Refused lines that are named.
NAMED_MAX = 10
_WRONG_LINE = re.compile(r"line (\d+): ")


@mqctl.command(
    "move",
    help="Moves messages from the head of a queue to another queue of the same virtual host, or those messages that fulfil all the conditions given, wherever they are in the queue; all others stay as they are. No message is lost; after a crash some may be in both.",
)
@in_vhost
@click.argument("queue")
@click.argument("destination")
@conditions
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1),
    help="Number of messages to move; by default all that the queue has now, or all that fulfil the conditions.",
)
@waiting_option
@pass_invocation
def move(
    invocation: Invocation,
    vhost: str,
    queue: str,
    destination: str,
    wanted: dict[str, str],
    count: int | None,
    waiting: bool,
) -> None:
    # An unknown destination is an error also if there is nothing to move.
    invocation.client.get("queues", vhost, destination)
    with progress(f"Moving messages to {destination}"):
        if wanted or waiting:
            moved, refused = _move_some(invocation, vhost, queue, destination, wanted, count, waiting=waiting)
        else:
            moved, refused = _move_first(invocation, vhost, queue, destination, count)
    if refused:
        raise _refuses_more(f"{moved} messages were moved", destination)
    invocation.say(f"{moved} messages were moved")


def _refuses_more(done: str, destination: str) -> Failure:
    return Failure(f"{done}; queue '{destination}' refuses more (x-overflow=reject-publish)", UNAVAILABLE)


def _move_first(
    invocation: Invocation, vhost: str, queue: str, destination: str, count: int | None
) -> tuple[int, int]:
    """Return how many messages were moved and how many the other queue refused."""
    moved = 0
    # Not "until it is empty": a destination that dead-letters into the queue would never let that end.
    left = count if count is not None else ready(invocation, vhost, queue)
    while left > 0:
        asked = {"destination": destination, "count": min(left, MOVED_AT_ONCE)}
        told = invocation.client.post("queues", vhost, queue, "move", body=asked)
        moved += told["moved"]
        left -= told["moved"]
        if told["refused"] or not told["moved"]:
            return moved, told["refused"]
    return moved, 0


def _move_some(
    invocation: Invocation,
    vhost: str,
    queue: str,
    destination: str,
    wanted: dict[str, str],
    count: int | None,
    *,
    waiting: bool,
) -> tuple[int, int]:
    moved = 0

    def ask(after: str, look: int) -> dict[str, int]:
        left = {} if count is None else {"count": min(count - moved, MOVED_AT_ONCE)}
        asked = {"destination": destination, "after": after, **wanted, **left, **_also(waiting)}
        told: dict[str, int] = invocation.client.post("queues", vhost, queue, "move", body=asked)
        return told

    for told in pages("", ready(invocation, vhost, queue, waiting=waiting), ask):
        moved += told["moved"]
        if told["refused"] or moved == count:
            return moved, told["refused"]
    return moved, 0


def _also(waiting: bool) -> dict[str, bool]:
    return {"waiting": True} if waiting else {}


@mqctl.command(
    "redrive",
    help="Moves dead letters from the head of a queue back to the queues in which they died first. Other messages stay, and so do those whose queue is gone or refuses them.",
)
@in_vhost
@click.argument("queue")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, MOVED_AT_ONCE),
    help="Number of messages to look at; by default as many as the queue has now, 10000 at most.",
)
@waiting_option
@pass_invocation
def redrive(invocation: Invocation, vhost: str, queue: str, count: int | None, waiting: bool) -> None:
    asked = {"count": count, **_also(waiting)}
    with progress(f"Redriving messages of {queue}"):
        told = invocation.client.post("queues", vhost, queue, "redrive", body=asked)
    invocation.say(f"{told['moved']} messages went back to their queues, {told['kept']} stay")


@mqctl.command(
    "purge_queue",
    help="Deletes all messages of a queue, except those that a consumer holds unacked; or only the messages that fulfil all the conditions given, wherever they are in the queue.",
)
@in_vhost
@click.argument("name")
@conditions
@waiting_option
@pass_invocation
def purge_queue(invocation: Invocation, vhost: str, name: str, wanted: dict[str, str], waiting: bool) -> None:
    if not wanted:
        if waiting:
            raise Failure("--waiting needs conditions: without them, all messages are deleted", USAGE)
        invocation.client.delete("queues", vhost, name, "contents")
        return

    def ask(after: str, look: int) -> dict[str, int]:
        asked = {"after": after, **wanted, **_also(waiting)}
        told: dict[str, int] = invocation.client.post("queues", vhost, name, "purge", body=asked)
        return told

    left = ready(invocation, vhost, name, waiting=waiting)
    with progress(f"Purging messages of {name}"):
        purged = sum(told["purged"] for told in pages("", left, ask))
    invocation.say(f"{purged} messages were purged")


@mqctl.command(
    "cancel_messages",
    help="Deletes the messages of a queue that have this message-id and wait before they are delivered: those of delayed delivery, and those that came back and wait for a retry. Exit code 69 if there is none.",
)
@in_vhost
@click.argument("queue")
@click.argument("message_id")
@click.option("--hex", "in_hex", is_flag=True, help="MESSAGE_ID is in hexadecimal digits: it is no text.")
@pass_invocation
def cancel_messages(invocation: Invocation, vhost: str, queue: str, message_id: str, in_hex: bool) -> None:
    asked: dict[str, Any] = {"message_id": message_id, "hex": in_hex}
    cancelled = 0
    with progress(f"Looking at messages of {queue}"):
        while True:
            told = invocation.client.post("queues", vhost, queue, "cancel", body=asked)
            cancelled += told["cancelled"]
            if told["next"] is None:
                break
            asked["after"] = told["next"]
    if not cancelled:
        raise Failure(f"no message with this id waits in queue '{queue}'", UNAVAILABLE)
    invocation.say(f"{cancelled} messages were cancelled")


@mqctl.command(
    "copy",
    help="Publishes copies of the messages of a queue or stream to another one of the same virtual host: of all that it has now, or of those that fulfil all the conditions given. The messages themselves stay as they are. Copies keep exchange, routing key, properties and headers.",
)
@in_vhost
@click.argument("queue")
@click.argument("destination")
@conditions
@click.option("--limit", type=click.IntRange(1), help="Number of messages to copy, at most.")
@click.option("--from", "after", metavar="PLACE", default="", help="Begin behind the message at this place.")
@pass_invocation
def copy(
    invocation: Invocation,
    vhost: str,
    queue: str,
    destination: str,
    wanted: dict[str, str],
    limit: int | None,
    after: str,
) -> None:
    # An unknown destination is an error also if there is nothing to copy.
    invocation.client.get("queues", vhost, destination)
    copied = 0

    def ask(after: str, look: int) -> dict[str, Any]:
        left = {} if limit is None else {"limit": limit - copied}
        asked = {"destination": destination, "after": after, "count": look, **wanted, **left}
        told: dict[str, Any] = invocation.client.post("queues", vhost, queue, "copy", body=asked)
        return told

    with progress(f"Copying messages to {destination}"):
        for told in pages(after, ready(invocation, vhost, queue), ask):
            copied += told["copied"]
            if told["refused"]:
                raise _refuses_more(f"{copied} messages were copied", destination)
            if copied == limit:
                break
    invocation.say(f"{copied} messages were copied")


@mqctl.command(
    "export",
    help="Writes the messages of a queue or stream to a file or to stdout, one JSON object on each line, in the order of delivery: all that it has now, or those that fulfil all the conditions given. The messages stay as they are. Payloads are in Base64, and properties have the types of AMQP, so that `import` makes the same messages again.",
)
@in_vhost
@click.argument("queue")
@click.argument("file", default=STDIO)
@conditions
@click.option(
    "--from",
    "after",
    metavar="PLACE",
    default="",
    help="Begin behind the message at this place, and append to FILE.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="Number of messages to look at; by default all.")
@pass_invocation
def export(
    invocation: Invocation,
    vhost: str,
    queue: str,
    file: str,
    wanted: dict[str, str],
    after: str,
    count: int | None,
) -> None:
    left = ready(invocation, vhost, queue)
    place, written = after, 0
    try:
        with _opened(file, "wb" if not after else "ab") as out, progress(f"Exporting {queue}"):
            for page in seen(
                invocation, vhost, queue, after, left if count is None else count, encoding="typed", **wanted
            ):
                for row in page["messages"]:
                    out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                out.flush()
                written += len(page["messages"])
                place = page["next"] or place
    except Failure as failure:
        raise Failure(
            f"{failure}; {written} messages were written: go on with --from {place!r}",
            failure.exit_code,
            failure.status,
        ) from None
    if not invocation.quiet:
        click.echo(f"{written} messages were written", err=True)


@contextmanager
def _opened(file: str, mode: str) -> Iterator[IO[bytes]]:
    """Open a file, or take stdin or stdout for it. Raises Failure."""
    if file == STDIO:
        yield sys.stdin.buffer if mode == "rb" else sys.stdout.buffer
        return
    try:
        with open(file, mode, opener=private) as opened:
            yield cast(IO[bytes], opened)
    except OSError as failure:
        raise Failure(f"{file}: {failure.strerror}", DATA_ERROR) from None


class _Lines(NamedTuple):
    """Lines that one request imports."""

    #: Number of the first one in the file.
    first: int
    lines: list[str]


@mqctl.command(
    "import",
    help="Publishes the messages of a file, or of stdin, that `export` wrote to a queue or stream, in their order, and waits until the queue has them. Stops at the first line that is wrong or that the queue refuses, and prints its number.",
)
@in_vhost
@click.argument("queue")
@click.argument("file", default=STDIO)
@click.option(
    "--from", "begin", metavar="LINE", type=click.IntRange(1), default=1, help="Begin with this line."
)
@pass_invocation
def import_(invocation: Invocation, vhost: str, queue: str, file: str, begin: int) -> None:
    imported = 0

    def publish(portion: _Lines) -> None:
        nonlocal imported
        try:
            told = invocation.client.post(
                "queues", vhost, queue, "import", body={"lines": "".join(portion.lines)}
            )
        except Failure as failure:
            wrong = _WRONG_LINE.match(str(failure)) if failure.status == 400 else None
            if wrong is not None:
                index = int(wrong[1]) - 1
                number = portion.first + index
                if index:
                    publish(_Lines(portion.first, portion.lines[:index]))
                raise Failure(
                    f"line {number}: {str(failure)[wrong.end() :]}; {imported} messages were imported: mend the "
                    f"line and go on with --from {number}, or pass over it with --from {number + 1}",
                    DATA_ERROR,
                ) from None
            raise Failure(
                f"{failure}; {imported} messages were imported: go on with --from {portion.first}; messages of "
                f"lines {portion.first} to {portion.first + len(portion.lines) - 1} may be there already",
                failure.exit_code,
                failure.status,
            ) from None
        imported += told["imported"]
        if told["refused"]:
            raise _refused(
                queue, portion, [portion.first + number - 1 for number in told["refused"]], imported
            )

    with _opened(file, "rb") as source, progress(f"Importing into {queue}"):
        for portion in _portions(source, begin):
            publish(portion)
    invocation.say(f"{imported} messages were imported")


def _refused(queue: str, portion: _Lines, lines: list[int], imported: int) -> Failure:
    end = portion.first + len(portion.lines)
    named = ", ".join(map(str, lines[:NAMED_MAX])) + (", …" if len(lines) > NAMED_MAX else "")
    # Those behind the first one may have been taken.
    begin = lines[0] if lines == list(range(lines[0], end)) else end
    return Failure(
        f"{imported} messages were imported; queue '{queue}' refuses {len(lines)} messages, in lines {named} "
        f"(x-overflow=reject-publish): go on with --from {begin}",
        UNAVAILABLE,
    )


def _portions(file: IO[bytes], begin: int) -> Iterator[_Lines]:
    """Yield the lines from `begin` on, as many at a time as one request takes. Raises Failure."""
    lines: list[str] = []
    first, size, number = begin, 0, 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if number < begin:
            while line and not line.endswith(b"\n"):
                line = file.readline(LINE_BYTES_MAX)
            continue
        wrong = ""
        if len(line) > LINE_BYTES_MAX:
            wrong = f"it is longer than {LINE_BYTES_MAX} bytes"
        else:
            try:
                text = line.decode()
            except UnicodeDecodeError:
                wrong = "it is not UTF-8"
        if wrong:
            if lines:
                yield _Lines(first, lines)
            raise Failure(
                f"line {number}: {wrong}; the lines before it were imported: pass over it with --from {number + 1}",
                DATA_ERROR,
            )
        if lines and (len(lines) == LINES_AT_ONCE or size + len(line) > BYTES_AT_ONCE):
            yield _Lines(first, lines)
            lines, first, size = [], number, 0
        lines.append(text)
        size += len(line)
    if lines:
        yield _Lines(first, lines)
