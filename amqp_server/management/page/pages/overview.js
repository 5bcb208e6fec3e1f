// The cluster at a glance: waiting messages, message rates, and the state of its nodes.

import {get} from "../api.js";
import {Chart, lengths, rates} from "../chart.js";
import {append, fill, h, say} from "../dom.js";
import {bytes, count, duration, rate, short} from "../format.js";
import {section} from "../list.js";
import {poll} from "../poll.js";
import {href} from "../route.js";
import {Table} from "../table.js";
import {may} from "../user.js";

/** Time span of the charts, with the interval of the node's samples for it. */
const RANGES = {600: ["10 minutes", 5], 3600: ["1 hour", 60], 28800: ["8 hours", 600], 86400: ["1 day", 1800]};

const TOTALS = [
  ["Connections", "connections"],
  ["Channels", "channels"],
  ["Exchanges", "exchanges"],
  ["Queues", "queues"],
  ["Consumers", "consumers"],
];

const NODES = [
  {label: "Node", text: (node) => node.name},
  {label: "State", text: state},
  {label: "Up for", text: (node) => duration(node.uptime), number: true},
  {label: "Memory", text: (node) => of(node.mem_used, node.mem_limit), number: true},
  {label: "Free disk", text: (node) => bytes(node.disk_free), number: true},
  {label: "Descriptors", text: (node) => (node.running ? count(node.fd_used) : "–"), number: true},
];

export function state(node) {
  if (!node.running) return "does not answer";
  const alarms = [node.mem_alarm && "memory alarm", node.disk_free_alarm && "disk alarm"].filter(Boolean);
  if (node.being_drained) alarms.push("drained");
  return alarms.length ? alarms.join(", ") : "running";
}

export function of(used, limit) {
  return typeof used === "number" ? `${bytes(used)} of ${bytes(limit)}` : "–";
}

export async function show(root, {signal}) {
  const totals = TOTALS.map(([label, key]) => {
    const value = h("output", {});
    const body = [value, h("span", {}, label)];
    return {key, value, element: h("a", {class: "total card", href: href([key])}, body)};
  });
  const waiting = new Chart("Messages in queues", short);
  const moving = new Chart("Messages per second", (value) => rate(value));
  const select = h(
    "select",
    {"aria-label": "Time that the charts show"},
    Object.entries(RANGES).map(([age, [label]]) => h("option", {value: age}, label)),
  );
  const about = h("p", {class: "about"});
  const listeners = h("ul", {class: "listeners"});
  const nodes = new Table(NODES, (node) => node.name, {caption: "Nodes"});
  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Overview"), select),
    about,
    h("div", {class: "totals"}, totals.map((each) => each.element)),
    h("div", {class: "charts"}, waiting.element, moving.element),
    may("monitoring") && section("Nodes", nodes.element),
    may("monitoring") && section("Listeners", listeners),
  ]);

  const again = poll(signal, async () => {
    const age = select.value;
    const [, incr] = RANGES[age];
    const range = {lengths_age: age, lengths_incr: incr, msg_rates_age: age, msg_rates_incr: incr};
    const told = await get(["overview"], range, signal);
    say(about, `${told.cluster_name}, ${told.product_name} ${told.product_version} (${told.build})`);
    for (const each of totals) say(each.value, count(told.object_totals[each.key]));
    const queued = told.queue_totals;
    waiting.show([
      {label: "Ready", points: lengths(queued.messages_ready_details)},
      {label: "Unacknowledged", points: lengths(queued.messages_unacknowledged_details)},
    ]);
    const moved = told.message_stats ?? {};
    moving.show([
      {label: "Published", points: rates(moved.publish_details)},
      {label: "Delivered", points: rates(moved.deliver_get_details)},
      {label: "Acknowledged", points: rates(moved.ack_details)},
      {label: "Confirmed", points: rates(moved.confirm_details)},
    ]);
    if (!may("monitoring")) return;
    const lines = (told.listeners ?? []).map((each) => `${each.node}: ${each.protocol} on ${each.ip_address}:${each.port}`);
    if (lines.length !== listeners.children.length) fill(listeners, lines.map((line) => h("li", {}, line)));
    nodes.show(await get(["nodes"], {}, signal));
  });
  select.addEventListener("change", again);
}
