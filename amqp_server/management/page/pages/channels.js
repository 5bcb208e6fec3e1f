// Channels of all connections.

import {get} from "../api.js";
import {at, count, rate} from "../format.js";
import {listPage} from "../list.js";
import {href} from "../route.js";
import {vhost} from "../vhost.js";

export const CHANNELS = [
  {label: "Name", sort: "name", text: (row) => row.name, href: (row) => href(["channel", row.name])},
  {label: "User", sort: "user", text: (row) => row.user},
  {label: "Virtual host", sort: "vhost", text: (row) => row.vhost},
  {label: "Mode", text: mode},
  {label: "State", sort: "state", text: (row) => row.state},
  {label: "Unconfirmed", sort: "messages_unconfirmed", number: true, text: (row) => count(row.messages_unconfirmed)},
  {label: "Unacked", sort: "messages_unacknowledged", number: true, text: (row) => count(row.messages_unacknowledged)},
  {label: "Prefetch", sort: "prefetch_count", number: true, text: (row) => count(row.prefetch_count)},
  {label: "Consumers", sort: "consumer_count", number: true, text: (row) => count(row.consumer_count)},
  {label: "Publishes", number: true, text: (row) => rate(at(row, "message_stats.publish_details.rate") ?? 0)},
  {label: "Gets", number: true, text: (row) => rate(at(row, "message_stats.deliver_get_details.rate") ?? 0)},
  {label: "Node", sort: "node", text: (row) => row.node},
];

export function mode(row) {
  if (row.transactional) return "transactions";
  return row.confirm ? "confirms" : "";
}

export async function show(root, {query, signal}) {
  const path = () => (vhost() ? ["vhosts", vhost(), "channels"] : ["channels"]);
  listPage(root, {
    title: "Channels",
    columns: CHANNELS,
    keyOf: (row) => JSON.stringify([row.node, row.name]),
    load: (asked, ended) => get(path(), asked, ended),
    query,
    signal,
    empty: "There is no channel.",
  });
}
