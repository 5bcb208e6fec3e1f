// Exchanges and queues with the bindings between them, from left to right, drawn as SVG.

import {svg} from "./dom.js";
import {href} from "./route.js";

const BOX_WIDTH = 170;
const BOX_HEIGHT = 30;
const COLUMN = 300;
const ROW = 44;
const MARGIN = 12;
const LETTERS = 21;

function cut(text, letters = LETTERS) {
  const line = text.replace(/\s+/g, " ");
  return line.length > letters ? `${line.slice(0, letters - 1)}…` : line;
}

/** Steps from the exchange in the middle, with a sign; what leads in both directions stays on the left. */
function depths(center, edges) {
  const found = new Map([[center, 0]]);
  const walk = (from, to, step) => {
    const pending = [center];
    while (pending.length) {
      const at = pending.shift();
      for (const edge of edges) {
        if (edge[from] !== at || found.has(edge[to])) continue;
        found.set(edge[to], found.get(at) + step);
        pending.push(edge[to]);
      }
    }
  };
  walk("to", "from", -1);
  walk("from", "to", 1);
  return found;
}

/**
 * nodes: Map from a key to {kind, name, vhost}; edges: {from, to, label, hit, dashed} between keys. `center` is the key of
 * the exchange that it is about.
 */
export function graph(center, nodes, edges, title) {
  const depth = depths(center, edges);
  const columns = new Map();
  for (const key of nodes.keys()) {
    const at = depth.get(key) ?? 1;
    if (!columns.has(at)) columns.set(at, []);
    columns.get(at).push(key);
  }
  const order = [...columns.keys()].sort((one, other) => one - other);
  const tallest = Math.max(...[...columns.values()].map((keys) => keys.length));
  const places = new Map();
  order.forEach((at, index) => {
    const keys = columns.get(at);
    const top = MARGIN + ((tallest - keys.length) * ROW) / 2;
    keys.forEach((key, row) => places.set(key, {x: MARGIN + index * COLUMN, y: top + row * ROW}));
  });
  const width = MARGIN * 2 + (order.length - 1) * COLUMN + BOX_WIDTH;
  const height = MARGIN * 2 + tallest * ROW;
  return svg(
    "svg",
    {class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": title},
    svg(
      "defs",
      {},
      svg(
        "marker",
        {id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse"},
        svg("path", {class: "arrow", d: "M0 0L8 4L0 8z"}),
      ),
    ),
    bundled(edges).map((bundle) => line(bundle, places)),
    [...nodes].map(([key, node]) => box(key === center, node, places.get(key))),
  );
}

/** One line for all bindings between two of them: those that a message takes come first. */
function bundled(edges) {
  const bundles = new Map();
  for (const edge of edges) {
    const key = JSON.stringify([edge.from, edge.to, Boolean(edge.dashed)]);
    if (!bundles.has(key)) bundles.set(key, []);
    bundles.get(key).push(edge);
  }
  return [...bundles.values()].map((bundle) => {
    const inOrder = [...bundle.filter((edge) => edge.hit), ...bundle.filter((edge) => !edge.hit)];
    const labels = inOrder.map((edge) => edge.label);
    const more = labels.length > 1 ? ` +${labels.length - 1}` : "";
    return {...inOrder[0], labels, short: cut(labels[0], 18 - more.length) + more};
  });
}

function line(edge, places) {
  const from = places.get(edge.from);
  const to = places.get(edge.to);
  const onward = to.x > from.x;
  const x1 = onward ? from.x + BOX_WIDTH : from.x + BOX_WIDTH / 2;
  const y1 = onward ? from.y + BOX_HEIGHT / 2 : from.y + BOX_HEIGHT;
  const x2 = onward ? to.x : to.x + BOX_WIDTH / 2;
  const y2 = onward ? to.y + BOX_HEIGHT / 2 : to.y + BOX_HEIGHT;
  const path = onward
    ? `M${x1} ${y1}C${x1 + 60} ${y1} ${x2 - 60} ${y2} ${x2} ${y2}`
    : `M${x1} ${y1}C${x1} ${y1 + ROW} ${x2} ${y2 + ROW} ${x2} ${y2}`;
  const kind = `edge${edge.hit ? " hit" : ""}${edge.dashed ? " dashed" : ""}`;
  return svg(
    "g",
    {class: kind},
    svg("path", {d: path, "marker-end": "url(#arrow)"}, svg("title", {}, edge.labels.join("\n"))),
    onward && svg("text", {x: x2 - 12, y: y2 - 6, "text-anchor": "end"}, edge.short),
  );
}

function box(isCenter, node, {x, y}) {
  const shown = node.name || "(default)";
  const target = node.kind === "more" ? undefined : href([node.kind, node.vhost, node.name]);
  return svg(
    target ? "a" : "g",
    {class: `node ${node.kind}${isCenter ? " center" : ""}`, href: target},
    svg("title", {}, `${node.kind} ${shown}`),
    svg("rect", {x, y, width: BOX_WIDTH, height: BOX_HEIGHT, rx: node.kind === "queue" ? 3 : 15}),
    svg("text", {x: x + BOX_WIDTH / 2, y: y + BOX_HEIGHT / 2 + 4, "text-anchor": "middle"}, cut(shown)),
  );
}
