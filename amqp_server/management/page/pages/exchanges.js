// All exchanges, or those of one vhost.

import {exchangePart, get, put} from "../api.js";
import {ApplyingPolicies, ArgumentFields, withArguments} from "../arguments.js";
import {button} from "../dom.js";
import {form} from "../dialog.js";
import {at, rate} from "../format.js";
import {listPage} from "../list.js";
import {go, href} from "../route.js";
import {ofVhost, vhostField} from "../vhost.js";

const SHOWN = [
  {
    label: "Name",
    sort: "name",
    text: (row) => row.name || "(default)",
    href: (row) => href(["exchange", row.vhost, row.name]),
  },
  {label: "Virtual host", sort: "vhost", text: (row) => row.vhost},
  {label: "Type", sort: "type", text: (row) => row.type},
  {label: "Features", text: features},
  {label: "In", sort: "message_stats.publish_in_details.rate", number: true, text: (row) => rate(at(row, "message_stats.publish_in_details.rate") ?? 0)},
  {label: "Out", sort: "message_stats.publish_out_details.rate", number: true, text: (row) => rate(at(row, "message_stats.publish_out_details.rate") ?? 0)},
];

const TYPES = [
  "direct", "topic", "fanout", "headers", "x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random",
  "x-delayed-message", "x-super-stream",
];

export function features(row) {
  const found = [
    row.durable && "durable",
    row.auto_delete && "auto-delete",
    row.internal && "internal",
    row.policy && `policy ${row.policy}`,
  ];
  return found.filter(Boolean).join(", ");
}

function add({queues, exchanges}) {
  // A super stream declares its partitions with the arguments of streams.
  const streams = queues.filter((row) => row.types.includes("stream") && row.name !== "x-queue-type");
  const rows = (type) => [
    ...exchanges.filter((row) => !row.types.length || row.types.includes(type)),
    ...(type === "x-super-stream" ? streams : []),
  ];
  const fields = [
    vhostField(),
    {name: "name", label: "Name", required: true},
    {name: "type", label: "Type", type: "select", options: TYPES},
    {name: "durable", label: "durable", type: "checkbox", value: true},
    {name: "auto_delete", label: "auto-delete", type: "checkbox"},
    {name: "internal", label: "internal", type: "checkbox"},
    {name: "applying", made: new ApplyingPolicies(() => "exchange")},
    {name: "arguments", made: new ArgumentFields("Arguments", "type", rows)},
  ];
  form("Declare an exchange", fields, "Declare", async ({vhost, name, ...body}) => {
    await put(["exchanges", vhost, exchangePart(name)], body);
    go(["exchange", vhost, name]);
  });
}

export async function show(root, {query, signal}) {
  listPage(root, {
    title: "Exchanges",
    columns: SHOWN,
    keyOf: (row) => JSON.stringify([row.vhost, row.name]),
    load: (asked, ended) => get(ofVhost("exchanges"), asked, ended),
    query,
    signal,
    actions: [button("Declare an exchange", () => withArguments(add), "primary")],
    empty: "No exchange is called so.",
  });
}
