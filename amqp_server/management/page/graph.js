// Exchanges and queues with the bindings between them, from left to right, drawn as SVG.

import {svg} from "./dom.js";
import {href} from "./route.js";

const BOX_HEIGHT = 30;
const ROW = 44;
const MARGIN = 12;
/** Two columns fit a phone. */
const NARROW = {box: 116, column: 212, letters: 13, label: 11};
const WIDE = {box: 170, column: 300, letters: 21, label: 18};

function cut(text, letters) {
  const line = text.replace(/\s+/g, " ");
  return line.length > letters ? `${line.slice(0, letters - 1)}…` : line;
}

/** Signed steps from the exchange in the middle; a node that is reachable in both directions stays on the left. */
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
 * the exchange in the middle.
 */
export function graph(center, nodes, edges, title) {
  const size = matchMedia("(max-width: 50rem)").matches ? NARROW : WIDE;
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
    keys.forEach((key, row) => places.set(key, {x: MARGIN + index * size.column, y: top + row * ROW}));
  });
  const width = MARGIN * 2 + (order.length - 1) * size.column + size.box;
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
    lines(bundled(edges, size), places, size),
    [...nodes].map(([key, node]) => box(key === center, node, places.get(key), size)),
  );
}

/** One line for all bindings between two nodes: bindings that a message takes come first. */
function bundled(edges, size) {
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
    return {...inOrder[0], labels, short: cut(labels[0], size.label - more.length) + more};
  });
}

/** Labels come after all lines, so that none is drawn over. */
function lines(bundles, places, size) {
  const drawn = bundles.map((edge) => line(edge, places, size));
  return [...drawn.map(([path]) => path), ...drawn.map(([, label]) => label)];
}

function line(edge, places, size) {
  const from = places.get(edge.from);
  const to = places.get(edge.to);
  const onward = to.x > from.x;
  const x1 = onward ? from.x + size.box : from.x + size.box / 2;
  const y1 = onward ? from.y + BOX_HEIGHT / 2 : from.y + BOX_HEIGHT;
  const x2 = onward ? to.x : to.x + size.box / 2;
  const y2 = onward ? to.y + BOX_HEIGHT / 2 : to.y + BOX_HEIGHT;
  const bend = (size.column - size.box) / 2;
  const path = onward
    ? `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`
    : `M${x1} ${y1}C${x1} ${y1 + ROW} ${x2} ${y2 + ROW} ${x2} ${y2}`;
  const hit = edge.hit ? " hit" : "";
  const kind = `edge${hit}${edge.dashed ? " dashed" : ""}`;
  return [
    svg("g", {class: kind}, svg("path", {d: path, "marker-end": "url(#arrow)"}, svg("title", {}, edge.labels.join("\n")))),
    onward &&
      svg("g", {class: `edge-label${hit}`}, svg("text", {x: x2 - 12, y: y2 - 6, "text-anchor": "end"}, edge.short)),
  ];
}

function box(isCenter, node, {x, y}, size) {
  const shown = node.name || "(default)";
  const target = node.kind === "more" ? undefined : href([node.kind, node.vhost, node.name]);
  return svg(
    target ? "a" : "g",
    {class: `node ${node.kind}${isCenter ? " center" : ""}`, href: target},
    svg("title", {}, `${node.kind} ${shown}`),
    svg("rect", {x, y, width: size.box, height: BOX_HEIGHT, rx: node.kind === "queue" ? 3 : 15}),
    svg("text", {x: x + size.box / 2, y: y + BOX_HEIGHT / 2 + 4, "text-anchor": "middle"}, cut(shown, size.letters)),
  );
}
