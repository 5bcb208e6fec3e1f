// Users that may log in, and their tags.

import {get, put} from "../api.js";
import {button} from "../dom.js";
import {form} from "../dialog.js";
import {table} from "../format.js";
import {listPage} from "../list.js";
import {go, href} from "../route.js";

const SHOWN = [
  {label: "Name", sort: "name", text: (row) => row.name, href: (row) => href(["user", row.name])},
  {label: "Tags", sort: "tags", text: (row) => row.tags.join(", ")},
  {label: "Password", sort: "hashing_algorithm", text: (row) => (row.hashing_algorithm ? "set" : "none")},
  {label: "Limits", text: (row) => table(row.limits)},
];

export const TAGS_HELP = "With commas between: administrator, monitoring, policymaker, management, or none.";

function add() {
  const fields = [
    {name: "name", label: "Name", required: true},
    {name: "password", label: "Password", type: "password", autocomplete: "new-password", help: "Empty: nobody can log in with a password."},
    {name: "tags", label: "Tags", help: TAGS_HELP},
  ];
  form("Add a user", fields, "Add", async ({name, password, tags}) => {
    await put(["users", name], password ? {password, tags} : {password_hash: "", tags});
    go(["user", name]);
  });
}

export async function show(root, {query, signal}) {
  listPage(root, {
    title: "Users",
    columns: SHOWN,
    keyOf: (row) => row.name,
    load: (asked, ended) => get(["users"], asked, ended),
    query,
    signal,
    actions: [button("Add a user", add, "primary")],
    empty: "No user is called so.",
  });
}
