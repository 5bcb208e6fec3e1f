// Transactions that are open, not decided, or not done everywhere.

import {get, remove} from "../api.js";
import {form} from "../dialog.js";
import {button} from "../dom.js";
import {bytes, count, duration} from "../format.js";
import {listPage} from "../list.js";
import {done} from "../notice.js";
import {href} from "../route.js";
import {may} from "../user.js";

const SHOWN = [
  {label: "Id", sort: "id", text: (row) => row.id},
  {label: "State", sort: "state", text: (row) => row.state},
  {label: "Age", sort: "age_ms", number: true, text: (row) => duration(row.age_ms)},
  {label: "Messages", sort: "messages", number: true, text: (row) => count(row.messages)},
  {label: "Size", sort: "message_bytes", number: true, text: (row) => bytes(row.message_bytes)},
  {label: "Acks", sort: "acks", number: true, text: (row) => count(row.acks)},
  {label: "Queues", text: (row) => row.participants.join(", ")},
  {label: "Waits for", text: (row) => row.waiting_for.join(", ")},
  {label: "Connection", sort: "connection", text: (row) => row.connection ?? "", href: (row) => row.connection && href(["connection", row.connection])},
  {label: "Channel", sort: "channel", number: true, text: (row) => (row.channel === null ? "" : count(row.channel))},
  {label: "User", sort: "user", text: (row) => row.user ?? ""},
  {label: "Virtual host", sort: "vhost", text: (row) => row.vhost},
  {label: "Node", sort: "node", text: (row) => row.node},
];

export async function show(root, {query, signal}) {
  function abort(row) {
    const open = row.state === "open";
    const fields = open ? [{name: "reason", label: "Reason, which the client is told", value: ""}] : [];
    form(`Abort transaction ${row.id}`, fields, "Abort", async ({reason}) => {
      await remove(["transactions", row.id], reason ? {reason} : {});
      done(open ? "It is rolled back, and its channel is closed." : "It is rolled back.");
      again();
    });
  }

  const ends = {
    label: "",
    make: (row, now) => (row.state === "open" || row.state === "undecided" ? button("Abort", () => abort(now()), "small") : null),
  };
  const again = listPage(root, {
    title: "Transactions",
    columns: may("policymaker") ? [...SHOWN, ends] : SHOWN,
    keyOf: (row) => row.id,
    load: (asked, ended) => get(["transactions"], asked, ended),
    query,
    signal,
    empty: "No transaction is open.",
    filtered: false,
  });
}
