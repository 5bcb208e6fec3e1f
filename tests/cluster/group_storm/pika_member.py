"""A member that uses pika, again and again: with one channel or two, with the prefetch of the consumer or of
the channel, with acks, transactions or neither, and with messages that it gets one by one.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import pika
import pika.exceptions

from tests.cluster.group_storm.telling import GROUP, HEARTBEAT_S, MAY, Teller, a_node, chance, complain, ends

#: Seconds for which a slow member holds its messages.
SLOW_S = 20.0
Held = tuple[int, tuple[str, int]]


class Member:
    """One channel."""

    def __init__(self, connection: Any, url: str) -> None:
        self.connection = connection
        self.channel: Any = connection.channel()
        self.teller = Teller(url)
        self.held: list[Held] = []
        self.tags: list[str] = []
        self.deliveries = 0
        self.lost = False
        self.transacts = chance.random() < 0.2
        self.no_ack = "no_ack" in MAY and chance.random() < 0.2
        self.gets = chance.random() < 0.2
        self.slow_until = 0.0
        if self.transacts:
            self.channel.tx_select()
        prefetch = chance.choice([1, 3, 20, 200])
        self.channel.basic_qos(prefetch_count=prefetch, global_qos=chance.random() < 0.3)
        self.channel.add_on_cancel_callback(self._cancelled)
        self.teller.join()
        # Not both: the library returns the message of a get before deliveries that have come earlier.
        if not self.gets:
            for _ in range(chance.choice([1, 1, 2])):
                self.tags.append(self.channel.basic_consume(GROUP, self._take, auto_ack=self.no_ack))

    def _cancelled(self, _: Any) -> None:
        self.lost = True

    def _take(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        message = self.teller.delivery(properties.headers, again=method.redelivered)
        self.deliveries += 1
        if self.no_ack:
            self.teller.tell("a", *message)
        else:
            self.held.append((method.delivery_tag, message))

    def step(self) -> None:
        if self.gets and len(self.held) < 50:
            method, properties, body = self.channel.basic_get(GROUP, auto_ack=self.no_ack)
            if method is not None:
                self._take(self.channel, method, properties, body)
        if time.monotonic() < self.slow_until:
            return
        while self.held and chance.random() < 0.9:
            self._settle()
        if chance.random() < 0.1:
            self.sync()
        if "slow" in MAY and self.held and chance.random() < 0.002:
            self.teller.tell("slow")
            self.slow_until = time.monotonic() + SLOW_S

    def _settle(self) -> None:
        place = chance.randrange(len(self.held)) if chance.random() < 0.3 else 0
        tag, message = self.held[place]
        luck = chance.random()
        if luck < 0.04:
            del self.held[place]
            self.teller.tell("r", *message)
            self.channel.basic_nack(tag, requeue=True)
        elif luck < 0.06 and "refuse" in MAY:
            del self.held[place]
            self.teller.tell("x", *message)
            self.channel.basic_reject(tag, requeue=False)
        elif luck < 0.5:
            done = [each for each in self.held if each[0] <= tag]
            self.held = [each for each in self.held if each[0] > tag]
            for _, each in done:
                self.teller.tell("a", *each)
            self.channel.basic_ack(tag, multiple=True)
        else:
            del self.held[place]
            self.teller.tell("a", *message)
            self.channel.basic_ack(tag)

    def sync(self) -> None:
        self.teller.tell("q")
        if self.transacts:
            self.channel.tx_commit()
        else:
            self.channel.queue_declare(GROUP, passive=True)
        self.teller.tell("c")

    def leave(self) -> None:
        """Leave in order: report messages that were sent meanwhile, and ack the held ones, or let them come
        back with the end of the channel.
        """
        for consumer_tag in self.tags:
            for method, properties, body in self.channel.basic_cancel(consumer_tag):
                # Messages of a consumer without acks; others come back.
                self._take(self.channel, method, properties, body)
        if ends() or chance.random() < 0.5:
            while self.held:
                tag, message = self.held.pop(0)
                self.teller.tell("a", *message)
                self.channel.basic_ack(tag)
        if self.transacts or chance.random() < 0.5:
            self.sync()
        self.teller.tell("closing")


def visit() -> None:
    url = a_node()
    parameters = pika.URLParameters(url)
    parameters.heartbeat = HEARTBEAT_S
    parameters.socket_timeout = parameters.stack_timeout = 20
    members: list[Member] = []
    try:
        connection = pika.BlockingConnection(parameters)
        for _ in range(chance.choice([1, 1, 2, 3])):
            members.append(Member(connection, url))
        stay(connection, members)
    finally:
        for member in members:
            member.teller.end("gone")


def stay(connection: Any, members: list[Member]) -> None:
    messages = chance.choice([5, 50, 500])
    until = time.monotonic() + chance.choice([0.5, 3, 10])
    while not ends() and sum(each.deliveries for each in members) < messages and time.monotonic() < until:
        connection.process_data_events(0.01)
        for member in members:
            if member.lost:
                for each in members:
                    each.teller.end("gone")
                connection.close()
                return
            member.step()
    how = chance.choice(["close", "close", "hang up", "channels"])
    if how == "hang up" and not ends() and not any(each.no_ack for each in members):
        for member in members:
            member.teller.end("gone")
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        return
    for member in members:
        member.leave()
    if how == "channels":
        for member in members:
            member.channel.close()
            if not member.lost:
                member.teller.end("leave")
    connection.close()
    for member in members:
        member.teller.end("gone" if member.lost else "leave")


def main() -> None:
    while not ends():
        try:
            visit()
        except (pika.exceptions.AMQPError, OSError) as error:
            complain(error)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
