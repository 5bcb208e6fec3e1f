// Connections of clients.

import {get} from "../api.js";
import {at, bytes, count} from "../format.js";
import {listPage} from "../list.js";
import {href} from "../route.js";
import {vhost} from "../vhost.js";

export const perSecond = (row, path) => `${bytes(Math.round(at(row, path) ?? 0))}/s`;

const SHOWN = [
  {label: "Name", sort: "name", text: (row) => row.name, href: (row) => href(["connection", row.name])},
  {label: "Called", sort: "user_provided_name", text: (row) => row.user_provided_name ?? ""},
  {label: "User", sort: "user", text: (row) => row.user},
  {label: "Virtual host", sort: "vhost", text: (row) => row.vhost},
  {label: "State", sort: "state", text: (row) => row.state},
  {label: "TLS", sort: "ssl", text: (row) => (row.ssl ? "yes" : "no")},
  {label: "Client", text: (row) => [row.client_properties?.product, row.client_properties?.version].filter(Boolean).join(" ")},
  {label: "Channels", sort: "channels", number: true, text: (row) => count(row.channels)},
  {label: "From it", sort: "recv_oct_details.rate", number: true, text: (row) => perSecond(row, "recv_oct_details.rate")},
  {label: "To it", sort: "send_oct_details.rate", number: true, text: (row) => perSecond(row, "send_oct_details.rate")},
  {label: "Node", sort: "node", text: (row) => row.node},
];

export async function show(root, {query, signal}) {
  const path = () => (vhost() ? ["vhosts", vhost(), "connections"] : ["connections"]);
  listPage(root, {
    title: "Connections",
    columns: SHOWN,
    keyOf: (row) => JSON.stringify([row.node, row.name]),
    load: (asked, ended) => get(path(), asked, ended),
    query,
    signal,
    empty: "Nobody is connected.",
  });
}
