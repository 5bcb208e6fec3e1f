// The nodes, their use of resources, and the leader of each queue.

import {get, post} from "../api.js";
import {Chart, lengths, rates} from "../chart.js";
import {append, button, h, say} from "../dom.js";
import {ask} from "../dialog.js";
import {bytes, count, duration, rate} from "../format.js";
import {attempt} from "../notice.js";
import {poll} from "../poll.js";
import {href} from "../route.js";
import {PagedTable, Table} from "../table.js";
import {may, user} from "../user.js";
import {ofVhost} from "../vhost.js";
import {of, state} from "./overview.js";

const RANGE = {node_stats_age: 600, node_stats_incr: 5};

const NODES = [
  {label: "Node", text: (node) => node.name},
  {label: "State", text: state},
  {label: "Leads", number: true, text: (node) => (node.led === undefined ? "–" : count(node.led))},
  {label: "Address", text: (node) => node.address ?? ""},
  {label: "Zone", text: (node) => node.zone ?? ""},
  {label: "Up for", number: true, text: (node) => duration(node.uptime)},
  {label: "Memory", number: true, text: (node) => of(node.mem_used, node.mem_limit)},
  {label: "Free disk", number: true, text: (node) => bytes(node.disk_free)},
  {label: "Connections", number: true, text: (node) => count(node.sockets_used)},
  {label: "Descriptors", number: true, text: (node) => count(node.fd_used)},
];

const LED = [
  {label: "Queue", sort: "name", text: (row) => row.name, href: (row) => href(["queue", row.vhost, row.name])},
  {label: "Virtual host", sort: "vhost", text: (row) => row.vhost},
  {label: "Leader", sort: "leader", text: (row) => row.leader || "none"},
  {label: "Members", text: (row) => row.members.join(", ")},
  {label: "Online", text: (row) => row.online.join(", ")},
  {label: "Lost entries", sort: "lost_entries", number: true, text: (row) => count(row.lost_entries)},
];

export async function show(root, {query, signal}) {
  const nodes = new Table(NODES, (node) => node.name, {caption: "Nodes"});
  const about = h("p", {class: "about"});
  const memory = new Chart(`Memory of ${user.node}`, bytes, 1024);
  const syncs = new Chart(`Syncs per second of ${user.node}`, rate);
  const led = h("div", {hidden: true});
  const table = new PagedTable(LED, (row) => JSON.stringify([row.vhost, row.name]), {
    caption: "Replicated queues",
    empty: "There is no replicated queue.",
    query,
    load: (asked) => get(ofVhost("cluster", "queues"), asked, signal),
    refresh: () => again(),
  });

  async function rebalance() {
    const text = "Queues get other leaders, so that each node leads about as many.";
    if (!(await ask("Rebalance?", text, "Rebalance"))) return;
    await attempt("The leaders are being spread.", () => post(["cluster", "rebalance"]));
    again();
  }

  append(led, [
    h("div", {class: "title"}, h("h2", {}, "Who leads what"), may("administrator") && button("Rebalance", rebalance)),
    table.element,
  ]);
  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Nodes")),
    about,
    nodes.element,
    h("div", {class: "charts"}, memory.element, syncs.element),
    led,
  ]);

  const again = poll(signal, async () => {
    const rows = await get(["nodes"], {}, signal);
    const cluster = user.clustered ? await get(["cluster"], {}, signal) : null;
    const known = new Map((cluster?.nodes ?? []).map((each) => [each.name, each]));
    nodes.show(
      rows.map((row) => ({
        ...row,
        address: known.get(row.name)?.address,
        zone: known.get(row.name)?.zone,
        led: cluster ? (cluster.groups[row.name] ?? 0) : undefined,
      })),
    );
    const own = await get(["nodes", user.node], RANGE, signal);
    memory.show([{label: "Used", points: lengths(own.mem_used_details)}]);
    syncs.show([{label: "Syncs", points: rates(own.io_sync_count_details)}]);
    led.hidden = cluster === null;
    if (cluster === null) {
      say(about, `${user.node} stands alone.`);
      return;
    }
    const without = cluster.groups_without_leader ? `, ${count(cluster.groups_without_leader)} have no leader` : "";
    const obstacle = cluster.obstacle ? ` Changes wait: ${cluster.obstacle}` : "";
    say(about, `${count(cluster.groups_total)} groups are on ${user.node}${without}.${obstacle}`);
    await table.showPage();
  });
}
