// One exchange: its bindings as a graph, and where a message would go.

import {exchangePart, get, post, remove} from "../api.js";
import {ArgumentFields, NamedValues, withArguments} from "../arguments.js";
import {append, button, fill, h, name} from "../dom.js";
import {ask, form, input, labelled, valueOf} from "../dialog.js";
import {Facts} from "../facts.js";
import {at, count, rate, table} from "../format.js";
import {graph} from "../graph.js";
import {section} from "../list.js";
import {attempt, refused} from "../notice.js";
import {poll} from "../poll.js";
import {publishForm} from "../publishing.js";
import {go, href} from "../route.js";
import {PagedTable} from "../table.js";
import {exchangeKey, Neighbourhood} from "../topology.js";
import {features} from "./exchanges.js";

const FACTS = [
  ["Virtual host", (row) => row.vhost],
  ["Type", (row) => row.type],
  ["Features", features],
  ["Arguments", (row) => table(row.arguments)],
  ["Policy", (row) => row.policy],
  ["In effect by policy", (row) => table(row.effective_policy_definition)],
  ["Partitions", (row) => row.partitions?.join(", ")],
  ["In", (row) => rate(at(row, "message_stats.publish_in_details.rate") ?? 0)],
  ["Out", (row) => rate(at(row, "message_stats.publish_out_details.rate") ?? 0)],
];

export async function show(root, {parts: [vhost, exchange], query, signal}) {
  const path = ["exchanges", vhost, exchangePart(exchange)];
  const facts = new Facts(FACTS);
  const drawing = h("div", {class: "scroll graph-room card", tabindex: "0", role: "region", "aria-label": "Bindings, drawn"});
  let near = new Neighbourhood(vhost, exchange);
  let explained = [];
  let looked = false;

  function draw() {
    near.mark(explained);
    const title = `Bindings of exchange ${exchange || "(default)"}`;
    fill(drawing, graph(exchangeKey(exchange), near.nodes, [...near.edges.values()], title));
    if (looked) return;
    looked = true;
    // On a narrow screen, keep the middle of the graph visible.
    const box = drawing.querySelector(".center rect").getBBox();
    drawing.scrollLeft = box.x + box.width / 2 - drawing.clientWidth / 2;
    drawing.scrollTop = box.y + box.height / 2 - drawing.clientHeight / 2;
  }

  async function reload() {
    try {
      const fresh = new Neighbourhood(vhost, exchange);
      facts.show(await fresh.load(signal));
      near = fresh;
      draw();
    } catch (error) {
      if (error.name !== "AbortError") refused(error);
    }
  }

  const unbind = (row, now) =>
    button("Unbind", async () => {
      const {destination, destination_type: kind, properties_key: key} = now();
      const asked = `The binding to ${kind} ${destination} is removed.`;
      if (!(await ask("Unbind?", asked, "Unbind"))) return;
      const of = ["bindings", vhost, "e", exchangePart(exchange), kind === "queue" ? "q" : "e", destination, key];
      await attempt("The binding was removed.", () => remove(of));
      again();
      reload();
    }, "small danger");
  const columns = [
    {label: "To", sort: "destination", text: (row) => row.destination, href: (row) => href([row.destination_type, vhost, row.destination])},
    {label: "Kind", sort: "destination_type", text: (row) => row.destination_type},
    {label: "Routing key", sort: "routing_key", text: (row) => row.routing_key},
    {label: "Arguments", text: (row) => table(row.arguments)},
    ...(exchange ? [{label: "", make: unbind}] : []),
  ];
  const bindings = new PagedTable(columns, (row) => JSON.stringify([row.destination_type, row.destination, row.properties_key]), {
    caption: "Bindings from it",
    empty: "Nothing is bound to it.",
    filtered: false,
    query,
    load: (asked) => get([...path, "bindings", "source"], asked, signal),
    refresh: () => again(),
  });

  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Exchange ", name(exchange || "(default)")), actions(vhost, exchange, signal, () => {
      again();
      reload();
    })),
    facts.element,
    explain(path, (steps) => {
      explained = steps;
      draw();
    }),
    section("Bindings", drawing, bindings.element),
  ]);
  const again = poll(signal, async () => {
    facts.show(await get(path, {}, signal));
    await bindings.showPage();
  });
  await reload();
}

/** A form for a routing key and properties, which shows where a message with them would go. */
function explain(path, found) {
  const fields = [
    {name: "routing_key", label: "Routing key"},
    {
      name: "properties",
      label: "Properties",
      type: "json",
      rows: 2,
      help: 'For exchanges that look at more than the key: {"headers": {"kind": "a"}}',
    },
  ];
  const inputs = fields.map(input);
  const answer = h("div", {class: "answer", "aria-live": "polite"});
  const element = h(
    "form",
    {
      class: "row",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          const [routing_key, properties] = fields.map((field, index) => valueOf(field, inputs[index]));
          const told = await post([...path, "explain"], {routing_key, properties});
          fill(answer, explanation(path[1], told));
          found(told.steps);
        } catch (error) {
          fill(answer, h("p", {class: "refusal"}, error.message));
        }
      },
    },
    fields.map((field, index) => labelled(field, inputs[index])),
    h("button", {}, "Explain"),
  );
  return section("Where would a message go?", element, answer);
}

function explanation(vhost, told) {
  const steps = told.steps.map((step) =>
    h(
      "li",
      {},
      `exchange `,
      name(step.exchange || "(default)", href(["exchange", vhost, step.exchange])),
      ` (${step.type}): `,
      step.bindings.length
        ? h("ul", {}, step.bindings.map((binding) => h("li", {}, way(vhost, binding))))
        : step.alternate === null
          ? "no binding matches"
          : `no binding matches, so it goes to the alternate exchange ${step.alternate}`,
    ),
  );
  const queues = told.queues.length
    ? `It would go to ${told.queues.length === 1 ? "one queue" : `${count(told.queues.length)} queues`}:`
    : "It would go to no queue.";
  return [
    h("p", {}, queues, told.queues.map((queue) => [" ", name(queue, href(["queue", vhost, queue]))])),
    !told.certain && h("p", {}, "The exchange chooses at random: another message may go elsewhere."),
    !told.complete && h("p", {}, "There are more bindings on the way than are shown here."),
    h("ol", {class: "steps"}, steps),
  ];
}

function way(vhost, binding) {
  const by = [binding.routing_key && `key ${binding.routing_key}`, table(binding.arguments)].filter(Boolean);
  const target = href([binding.destination_type, vhost, binding.destination]);
  return [`to ${binding.destination_type} `, name(binding.destination, target), by.length ? ` by ${by.join(", ")}` : ""];
}

/** What the bindings of an exchange have beside the key. */
function bindingArguments({type, arguments: own}, bindings) {
  const routing = type === "x-delayed-message" ? own["x-delayed-type"] : type;
  const headers = routing === "headers";
  const help = headers
    ? "A message must have them, all or one, as x-match says. With `any value`, it must have the header."
    : `Exchanges of type ${routing} do not look at them.`;
  const others = new NamedValues(headers ? "Headers" : "Others", help);
  const made = new ArgumentFields("Arguments", null, () => bindings.filter((row) => row.types.includes(routing)), {}, others);
  made.element.open = headers;
  return made;
}

function actions(vhost, exchange, signal, again) {
  const path = ["exchanges", vhost, exchangePart(exchange)];

  async function bind() {
    try {
      const row = await get(path, {}, signal);
      withArguments(({bindings}) => bindTo(bindingArguments(row, bindings)));
    } catch (error) {
      if (error.name !== "AbortError") refused(error);
    }
  }

  function bindTo(made) {
    const fields = [
      {name: "kind", label: "To", type: "select", options: [["q", "queue"], ["e", "exchange"]]},
      {name: "destination", label: "Name", required: true},
      {name: "routing_key", label: "Routing key"},
      {name: "arguments", made},
    ];
    form(`Bind to ${exchange}`, fields, "Bind", async ({kind, destination, ...body}) => {
      await post(["bindings", vhost, "e", exchangePart(exchange), kind, destination], body);
      again();
    });
  }

  async function del() {
    const text = "The exchange and its bindings are deleted. This cannot be undone.";
    if (!(await ask(`Delete ${exchange}?`, text, "Delete"))) return;
    if (await attempt("The exchange was deleted.", () => remove(path))) go(["exchanges"]);
  }

  return h(
    "div",
    {class: "buttons"},
    button("Publish", () => publishForm(vhost, exchange, "", again), "primary"),
    exchange && button("Bind", bind),
    exchange && button("Delete", del, "danger"),
  );
}
