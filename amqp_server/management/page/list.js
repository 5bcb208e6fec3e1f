// A page that is one table, paged by the node.

import {append, h} from "./dom.js";
import {poll} from "./poll.js";
import {PagedTable} from "./table.js";
import {user} from "./user.js";
import {several} from "./vhost.js";

/** Return the columns that distinguish rows: all rows may belong to one vhost, or to one node. */
function telling(columns) {
  const same = [!several() && "Virtual host", !user.clustered && "Node"];
  return columns.filter((column) => !same.includes(column.label));
}

/** Show the list; returns a function that asks the node again at once. */
export function listPage(root, {title, columns, keyOf, load, query, signal, actions = [], empty, before = [], filtered = true}) {
  const table = new PagedTable(telling(columns), keyOf, {
    caption: title,
    empty,
    filtered,
    query,
    load: (asked) => load(asked, signal),
    refresh: () => again(),
  });
  append(root, [h("div", {class: "title"}, h("h1", {}, title), actions), before, table.element]);
  const again = poll(signal, () => table.showPage());
  return again;
}

/** A section with a heading. */
export function section(title, ...content) {
  return h("section", {}, h("h2", {}, title), content);
}
