// All queues, or those of one vhost.

import {get, put} from "../api.js";
import {ApplyingPolicies, ArgumentFields, withArguments} from "../arguments.js";
import {button} from "../dom.js";
import {form} from "../dialog.js";
import {at, bytes, count, rate} from "../format.js";
import {listPage} from "../list.js";
import {go, href} from "../route.js";
import {ofVhost, vhostField} from "../vhost.js";

const COLUMNS = [
  "name", "vhost", "type", "state", "durable", "auto_delete", "exclusive", "policy", "node", "leader", "consumers",
  "messages_ready", "messages_unacknowledged", "message_bytes", "message_stats.publish_details.rate",
  "message_stats.deliver_get_details.rate",
].join(",");

const SHOWN = [
  {label: "Name", sort: "name", text: (row) => row.name, href: (row) => href(["queue", row.vhost, row.name])},
  {label: "Virtual host", sort: "vhost", text: (row) => row.vhost},
  {label: "Type", sort: "type", text: (row) => row.type},
  {label: "Features", text: features},
  {label: "State", sort: "state", text: (row) => row.state ?? ""},
  {label: "Ready", sort: "messages_ready", number: true, text: (row) => count(row.messages_ready)},
  {label: "Unacked", sort: "messages_unacknowledged", number: true, text: (row) => count(row.messages_unacknowledged)},
  {label: "Size", sort: "message_bytes", number: true, text: (row) => bytes(row.message_bytes)},
  {label: "In", sort: "message_stats.publish_details.rate", number: true, text: (row) => rate(at(row, "message_stats.publish_details.rate") ?? 0)},
  {label: "Out", sort: "message_stats.deliver_get_details.rate", number: true, text: (row) => rate(at(row, "message_stats.deliver_get_details.rate") ?? 0)},
  {label: "Consumers", sort: "consumers", number: true, text: (row) => count(row.consumers)},
  {label: "Node", sort: "node", text: (row) => row.leader || row.node || ""},
];

export function features(row) {
  const found = [
    row.durable && "durable",
    row.auto_delete && "auto-delete",
    row.exclusive && "exclusive",
    row.policy && `policy ${row.policy}`,
  ];
  return found.filter(Boolean).join(", ");
}

const TYPES = ["classic", "quorum", "stream", "stream-group"];

function add({queues}) {
  const rows = (type) => queues.filter((row) => row.types.includes(type) && row.name !== "x-queue-type");
  const fields = [
    vhostField(),
    {name: "name", label: "Name", required: true},
    {name: "type", label: "Type", type: "select", options: TYPES, value: "quorum"},
    {name: "durable", label: "durable", type: "checkbox", value: true},
    {name: "auto_delete", label: "auto-delete", type: "checkbox"},
    {name: "applying", made: new ApplyingPolicies((inputs) => inputs.get("type").value)},
    {name: "arguments", made: new ArgumentFields("Arguments", "type", rows)},
  ];
  form("Declare a queue", fields, "Declare", async (values) => {
    const {vhost, name, type, durable, auto_delete} = values;
    const body = {durable, auto_delete, arguments: {"x-queue-type": type, ...values.arguments}};
    await put(["queues", vhost, name], body);
    go([type === "stream-group" ? "group" : "queue", vhost, name]);
  });
}

export async function show(root, {query, signal}) {
  listPage(root, {
    title: "Queues",
    columns: SHOWN,
    keyOf: (row) => JSON.stringify([row.vhost, row.name]),
    load: (asked, ended) => get(ofVhost("queues"), {...asked, columns: COLUMNS}, ended),
    query,
    signal,
    actions: [button("Declare a queue", () => withArguments(add), "primary")],
    empty: "No queue is called so.",
  });
}
