// One connection, its channels, and a way to close it.

import {get, remove} from "../api.js";
import {Chart, rates} from "../chart.js";
import {append, button, h, name} from "../dom.js";
import {form} from "../dialog.js";
import {Facts} from "../facts.js";
import {bytes, count, table, time, yes} from "../format.js";
import {section} from "../list.js";
import {done} from "../notice.js";
import {poll} from "../poll.js";
import {go} from "../route.js";
import {Table} from "../table.js";
import {may, user} from "../user.js";
import {CHANNELS} from "./channels.js";

const RANGE = {data_rates_age: 600, data_rates_incr: 5};

const FACTS = [
  ["Called", (row) => row.user_provided_name],
  ["User", (row) => row.user],
  ["Virtual host", (row) => row.vhost],
  ["Node", (row) => row.node],
  ["State", (row) => row.state],
  ["Protocol", (row) => row.protocol],
  ["Login by", (row) => row.auth_mechanism],
  ["TLS", (row) => yes(row.ssl)],
  ["Since", (row) => time(row.connected_at)],
  ["Heartbeat", (row) => (row.timeout ? `${row.timeout} s` : "none")],
  ["Largest frame", (row) => bytes(row.frame_max)],
  ["Channels", (row) => `${count(row.channels)} of ${count(row.channel_max)}`],
  ["From it", (row) => bytes(row.recv_oct)],
  ["To it", (row) => bytes(row.send_oct)],
  ["Waits to be sent", (row) => bytes(row.send_pend)],
  ["Client", (row) => table({...row.client_properties, capabilities: undefined}), null, true],
  ["Client can", (row) => abilities(row.client_properties?.capabilities), null, true],
];

/** Columns that are the same for all of its channels. */
const OWN = ["User", "Virtual host", "Node"];

function abilities(told) {
  return Object.keys(told ?? {})
    .filter((each) => told[each])
    .join(", ");
}

export async function show(root, {parts: [connection], signal}) {
  const path = ["connections", connection];
  const facts = new Facts(FACTS);
  const chart = new Chart("Bytes per second", (value) => `${bytes(Math.round(value))}/s`, 1024);
  const channels = new Table(
    CHANNELS.filter((column) => !OWN.includes(column.label)),
    (row) => row.name,
    {caption: "Channels", empty: "It has no channel."},
  );

  function close() {
    const fields = [{name: "reason", label: "Reason, which the client is told", value: "Closed via management plugin"}];
    form("Close the connection", fields, "Close", async ({reason}) => {
      await remove(path, {reason});
      done("The connection is being closed.");
      go(["connections"]);
    });
  }

  // Others may be closed by administrators only.
  const closing = button("Close", close, "danger");
  closing.hidden = !may("administrator");
  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Connection ", name(connection)), closing),
    facts.element,
    h("div", {class: "charts"}, chart.element),
    section("Channels", channels.element),
  ]);
  poll(signal, async () => {
    const row = await get(path, RANGE, signal);
    closing.hidden = !may("administrator") && row.user !== user.name;
    facts.show(row);
    chart.show([
      {label: "From it", points: rates(row.recv_oct_details)},
      {label: "To it", points: rates(row.send_oct_details)},
    ]);
    channels.show(await get([...path, "channels"], {}, signal));
  });
}
