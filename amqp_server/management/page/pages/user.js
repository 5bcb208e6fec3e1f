// One user: tags, password, and the permissions in each virtual host.

import {get, put, remove} from "../api.js";
import {append, button, h, name} from "../dom.js";
import {ask, form} from "../dialog.js";
import {Facts} from "../facts.js";
import {table} from "../format.js";
import {section} from "../list.js";
import {attempt, done} from "../notice.js";
import {poll} from "../poll.js";
import {go} from "../route.js";
import {Table} from "../table.js";
import {vhostField} from "../vhost.js";
import {TAGS_HELP} from "./users.js";

const FACTS = [
  ["Tags", (row) => row.tags.join(", ") || "none"],
  ["Password", (row) => (row.hashing_algorithm ? "set" : "none: nobody can log in with one")],
  ["Limits", (row) => table(row.limits)],
];

const PATTERNS = [
  {name: "configure", label: "Configure", value: ".*", help: "A regular expression of names; empty permits nothing."},
  {name: "write", label: "Write", value: ".*"},
  {name: "read", label: "Read", value: ".*"},
];

export async function show(root, {parts: [user], signal}) {
  const facts = new Facts(FACTS);
  let tags = "";
  const path = ["users", user];

  const permissions = new Table(
    [
      {label: "Virtual host", text: (row) => row.vhost},
      ...PATTERNS.map((each) => ({label: each.label, text: (row) => row[each.name]})),
      {label: "", make: (row, now) => clear(() => ["permissions", now().vhost, user])},
    ],
    (row) => row.vhost,
    {caption: "Permissions", empty: "The user may open no virtual host."},
  );
  const topics = new Table(
    [
      {label: "Virtual host", text: (row) => row.vhost},
      {label: "Exchange", text: (row) => row.exchange},
      {label: "Write", text: (row) => row.write},
      {label: "Read", text: (row) => row.read},
      {label: "", make: (row, now) => clear(() => ["topic-permissions", now().vhost, user, now().exchange])},
    ],
    (row) => JSON.stringify([row.vhost, row.exchange]),
    {caption: "Topic permissions", empty: "All routing keys are permitted."},
  );

  function clear(of) {
    return button("Clear", async () => {
      if (!(await ask("Clear it?", `What it permits to ${user} is taken away.`, "Clear"))) return;
      await attempt("It was cleared.", () => remove(of()));
      again();
    }, "small danger");
  }

  function permit() {
    form("Set permissions", [vhostField(), ...PATTERNS], "Set", async ({vhost, ...body}) => {
      await put(["permissions", vhost, user], body);
      done("The permissions were set.");
      again();
    });
  }

  function permitTopic() {
    const fields = [
      vhostField(),
      {name: "exchange", label: "Exchange", required: true, value: "amq.topic"},
      {name: "write", label: "Write", value: ".*", help: "A regular expression of routing keys."},
      {name: "read", label: "Read", value: ".*"},
    ];
    form("Set topic permissions", fields, "Set", async ({vhost, ...body}) => {
      await put(["topic-permissions", vhost, user], body);
      done("The topic permissions were set.");
      again();
    });
  }

  function change() {
    const fields = [
      {name: "tags", label: "Tags", value: tags, help: TAGS_HELP},
      {name: "password", label: "New password", type: "password", autocomplete: "new-password", help: "Empty: it stays as it is."},
    ];
    form(`Change ${user}`, fields, "Change", async (values) => {
      const body = {tags: values.tags};
      if (values.password) body.password = values.password;
      await put(path, body);
      done("The user was changed.");
      again();
    });
  }

  async function del() {
    if (!(await ask(`Delete ${user}?`, "The user's connections are closed.", "Delete"))) return;
    if (await attempt("The user was deleted.", () => remove(path))) go(["users"]);
  }

  const buttons = h("div", {class: "buttons"}, button("Change", change), button("Delete", del, "danger"));
  append(root, [
    h("div", {class: "title"}, h("h1", {}, "User ", name(user)), buttons),
    facts.element,
    section("Permissions", permissions.element, button("Set permissions", permit)),
    section("Topic permissions", topics.element, button("Set topic permissions", permitTopic)),
  ]);
  const again = poll(signal, async () => {
    const row = await get(path, {}, signal);
    tags = row.tags.join(",");
    facts.show(row);
    permissions.show(await get([...path, "permissions"], {}, signal));
    topics.show(await get([...path, "topic-permissions"], {}, signal));
  });
}
