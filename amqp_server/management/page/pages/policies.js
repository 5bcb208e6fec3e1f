// Policies and operator policies.

import {get, put, remove} from "../api.js";
import {ArgumentFields, withArguments} from "../arguments.js";
import {append, button, h} from "../dom.js";
import {ask, form} from "../dialog.js";
import {table} from "../format.js";
import {section} from "../list.js";
import {attempt, done} from "../notice.js";
import {poll} from "../poll.js";
import {Table} from "../table.js";
import {may} from "../user.js";
import {ofVhost, vhostField} from "../vhost.js";

const APPLIES = ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];

const SHOWN = [
  {label: "Name", text: (row) => row.name},
  {label: "Virtual host", text: (row) => row.vhost},
  {label: "Pattern", text: (row) => row.pattern},
  {label: "Applies to", text: (row) => row["apply-to"]},
  {label: "Priority", number: true, text: (row) => row.priority},
  {label: "Definition", text: (row) => table(row.definition)},
];

export async function show(root, {signal}) {
  const kinds = [
    part("Policies", "policies", "policymaker", () => again()),
    part("Operator policies", "operator-policies", "administrator", () => again()),
  ];
  append(root, [h("div", {class: "title"}, h("h1", {}, "Policies")), kinds.map((each) => each.element)]);
  const again = poll(signal, async () => {
    for (const each of kinds) each.table.show(await get(ofVhost(each.path), {}, signal));
  });
}

function part(title, path, tag, again) {
  function edit(row, known) {
    const keys = known.policies.filter((key) => key.operators || path === "policies");
    // A policy with a key that a type of queues lacks does not apply to queues of that type.
    const rows = (kind) => keys.filter((key) => key.types.some((type) => known["apply-to"][kind].includes(type)));
    const before = row ?? {pattern: ".*", "apply-to": "queues", priority: 0, definition: {}};
    const own = row ? [] : [vhostField(), {name: "name", label: "Name", required: true}];
    const fields = [
      ...own,
      {name: "pattern", label: "Pattern", value: before.pattern, required: true, help: "A regular expression of names."},
      {name: "apply-to", label: "Applies to", type: "select", options: APPLIES, value: before["apply-to"]},
      {name: "priority", label: "Priority", type: "number", value: before.priority},
      {name: "definition", made: new ArgumentFields("Definition", "apply-to", rows, before.definition)},
    ];
    form(row ? `Change ${row.name}` : `Add to ${title.toLowerCase()}`, fields, "Set", async (values) => {
      const {vhost = row?.vhost, name = row?.name, ...body} = values;
      await put([path, vhost, name], body);
      done("It is in effect.");
      again();
    });
  }

  const buttons = (row, now) =>
    h(
      "div",
      {class: "buttons"},
      button("Change", () => withArguments((known) => edit(now(), known)), "small"),
      button("Delete", async () => {
        const {vhost, name} = now();
        if (!(await ask(`Delete ${name}?`, "What it sets is no longer in effect.", "Delete"))) return;
        await attempt("It was deleted.", () => remove([path, vhost, name]));
        again();
      }, "small danger"),
    );

  const columns = may(tag) ? [...SHOWN, {label: "", make: buttons}] : SHOWN;
  const shown = new Table(columns, (row) => JSON.stringify([row.vhost, row.name]), {caption: title, empty: "None."});
  const element = section(title, shown.element, may(tag) && button("Add", () => withArguments((known) => edit(null, known))));
  return {path, table: shown, element};
}
