// One channel and its consumers.

import {get} from "../api.js";
import {Chart, rates} from "../chart.js";
import {append, h, name} from "../dom.js";
import {Facts} from "../facts.js";
import {count, rate} from "../format.js";
import {section} from "../list.js";
import {poll} from "../poll.js";
import {href} from "../route.js";
import {Table} from "../table.js";
import {mode} from "./channels.js";
import {CONSUMERS} from "./consumers.js";

const RANGE = {msg_rates_age: 600, msg_rates_incr: 5};

const FACTS = [
  ["Connection", (row) => row.connection_details.name, (row) => href(["connection", row.connection_details.name])],
  ["User", (row) => row.user],
  ["Virtual host", (row) => row.vhost],
  ["Node", (row) => row.node],
  ["State", (row) => row.state],
  ["Mode", mode],
  ["Prefetch", (row) => count(row.prefetch_count)],
  ["Prefetch of all consumers", (row) => count(row.global_prefetch_count)],
  ["Unacknowledged", (row) => count(row.messages_unacknowledged)],
  ["Unconfirmed", (row) => count(row.messages_unconfirmed)],
  ["Uncommitted publishes", (row) => count(row.messages_uncommitted)],
  ["Uncommitted acks", (row) => count(row.acks_uncommitted)],
];

/** Columns that are the same for all of its consumers. */
const OWN = ["Virtual host", "Channel", "User", "Node"];

export async function show(root, {parts: [channel], signal}) {
  const facts = new Facts(FACTS);
  const chart = new Chart("Messages per second", rate);
  const consumers = new Table(
    CONSUMERS.filter((column) => !OWN.includes(column.label)),
    (row) => row.consumer_tag,
    {caption: "Consumers", empty: "It consumes nothing."},
  );
  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Channel ", name(channel))),
    facts.element,
    h("div", {class: "charts"}, chart.element),
    section("Consumers", consumers.element),
  ]);
  poll(signal, async () => {
    const row = await get(["channels", channel], RANGE, signal);
    facts.show(row);
    const moved = row.message_stats ?? {};
    chart.show([
      {label: "Published", points: rates(moved.publish_details)},
      {label: "Confirmed", points: rates(moved.confirm_details)},
      {label: "Delivered", points: rates(moved.deliver_get_details)},
      {label: "Acknowledged", points: rates(moved.ack_details)},
    ]);
    consumers.show(row.consumer_details ?? []);
  });
}
