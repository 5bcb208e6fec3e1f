// Virtual hosts.

import {get, put, remove} from "../api.js";
import {button} from "../dom.js";
import {ask, form} from "../dialog.js";
import {count} from "../format.js";
import {listPage} from "../list.js";
import {attempt, done} from "../notice.js";
import {may} from "../user.js";
import {loadVhosts} from "../vhost.js";

const SHOWN = [
  {label: "Name", sort: "name", text: (row) => row.name},
  {label: "Description", sort: "description", text: (row) => row.description ?? ""},
  {label: "Tags", text: (row) => (row.tags ?? []).join(", ")},
  {label: "Queues are", text: queueType},
  {label: "Traced", text: (row) => (row.tracing ? "yes" : "no")},
  {label: "Ready", sort: "messages_ready", number: true, text: (row) => count(row.messages_ready)},
  {label: "Unacked", sort: "messages_unacknowledged", number: true, text: (row) => count(row.messages_unacknowledged)},
];

function queueType(row) {
  return row.default_queue_type === "undefined" ? "" : (row.default_queue_type ?? "");
}

export async function show(root, {query, signal}) {
  const administrator = may("administrator");

  function add() {
    const fields = [
      {name: "name", label: "Name", required: true},
      {name: "description", label: "Description"},
      {name: "default_queue_type", label: "Queues that name no type are", type: "select", options: [["undefined", "as the node's option says"], "classic", "quorum", "stream"]},
    ];
    form("Add a virtual host", fields, "Add", async ({name, ...body}) => {
      await put(["vhosts", name], body);
      done("The virtual host was added. Nobody may open it before permissions are set.");
      await loadVhosts();
      again();
    });
  }

  const del = (row, now) =>
    button("Delete", async () => {
      const {name} = now();
      const text = "All that is in it is deleted, and its connections are closed. This cannot be undone.";
      if (!(await ask(`Delete virtual host ${name}?`, text, "Delete"))) return;
      await attempt("The virtual host was deleted.", () => remove(["vhosts", name]));
      await loadVhosts();
      again();
    }, "small danger");

  const again = listPage(root, {
    title: "Virtual hosts",
    columns: administrator ? [...SHOWN, {label: "", make: del}] : SHOWN,
    keyOf: (row) => row.name,
    load: (asked, ended) => get(["vhosts"], asked, ended),
    query,
    signal,
    actions: administrator ? [button("Add a virtual host", add, "primary")] : [],
  });
}
