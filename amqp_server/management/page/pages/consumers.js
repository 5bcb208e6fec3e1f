// Consumers of all queues.

import {get} from "../api.js";
import {count} from "../format.js";
import {listPage} from "../list.js";
import {href} from "../route.js";
import {ofVhost} from "../vhost.js";

export const CONSUMERS = [
  {label: "Tag", sort: "consumer_tag", text: (row) => row.consumer_tag},
  {
    label: "Queue",
    sort: "queue.name",
    text: (row) => row.queue.name,
    href: (row) => href(["queue", row.queue.vhost, row.queue.name]),
  },
  {label: "Virtual host", sort: "queue.vhost", text: (row) => row.queue.vhost},
  {
    label: "Channel",
    sort: "channel_details.name",
    text: (row) => row.channel_details.name ?? "on another node",
    href: (row) => row.channel_details.name && href(["channel", row.channel_details.name]),
  },
  {label: "User", sort: "channel_details.user", text: (row) => row.channel_details.user ?? ""},
  {label: "State", sort: "activity_status", text: (row) => row.activity_status},
  {label: "Acks", sort: "ack_required", text: (row) => (row.ack_required ? "required" : "none")},
  {label: "Prefetch", sort: "prefetch_count", number: true, text: (row) => count(row.prefetch_count)},
  {label: "Lag", sort: "lag", number: true, text: (row) => (row.lag === undefined ? "–" : count(row.lag))},
  {label: "Node", sort: "channel_details.node", text: (row) => row.channel_details.node ?? ""},
];

export async function show(root, {query, signal}) {
  listPage(root, {
    title: "Consumers",
    columns: CONSUMERS,
    keyOf: (row) => JSON.stringify([row.queue, row.channel_details.node, row.channel_details.name, row.channel_details.number, row.consumer_tag]),
    load: (asked, ended) => get(ofVhost("consumers"), asked, ended),
    query,
    signal,
    filtered: false,
    empty: "Nobody consumes.",
  });
}
