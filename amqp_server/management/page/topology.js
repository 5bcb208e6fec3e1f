// The neighbourhood of an exchange: its bindings, and the ways of its messages through other exchanges.

import {exchangePart, get} from "./api.js";
import {count, table} from "./format.js";

/** Limits: bindings shown for each exchange, exchanges that are followed, steps from the first one. */
const BINDINGS_MAX = 40;
const EXCHANGES_MAX = 12;
const DEPTH_MAX = 3;

export const exchangeKey = (name) => `e:${name}`;
const keyOf = (kind, name) => (kind === "exchange" ? exchangeKey(name) : `q:${name}`);

export class Neighbourhood {
  constructor(vhost, exchange) {
    this.vhost = vhost;
    this.exchange = exchange;
    this.nodes = new Map();
    this.edges = new Map();
    this.node("exchange", exchange);
  }

  node(kind, name) {
    const key = keyOf(kind, name);
    if (!this.nodes.has(key)) this.nodes.set(key, {kind, name, vhost: this.vhost});
    return key;
  }

  edge(from, to, label, more) {
    const key = JSON.stringify([from, to, label]);
    const edge = this.edges.get(key) ?? {from, to, label};
    this.edges.set(key, Object.assign(edge, more));
  }

  binding(source, row, more) {
    const to = this.node(row.destination_type, row.destination);
    const label = [row.routing_key, table(row.arguments)].filter(Boolean).join(" ");
    this.edge(this.node("exchange", source), to, label, more);
  }

  async load(signal) {
    const first = ["exchanges", this.vhost, exchangePart(this.exchange)];
    const page = {page: 1, page_size: BINDINGS_MAX};
    const declared = await get(first, {}, signal);
    if (this.exchange) {
      const to = await get([...first, "bindings", "destination"], page, signal);
      for (const row of to.items) this.binding(row.source, row);
    }
    const pending = [[this.exchange, 0, declared]];
    const seen = new Set([this.exchange]);
    while (pending.length && seen.size <= EXCHANGES_MAX) {
      const [name, depth, row] = pending.shift();
      await this.follow(name, depth, row, seen, pending, signal);
    }
    return declared;
  }

  async follow(name, depth, row, seen, pending, signal) {
    const path = ["exchanges", this.vhost, exchangePart(name)];
    const found = await get([...path, "bindings", "source"], {page: 1, page_size: BINDINGS_MAX}, signal);
    for (const each of found.items) {
      this.binding(name, each);
      if (each.destination_type === "exchange") next(each.destination);
    }
    const left = found.filtered_count - found.items.length;
    if (left > 0) {
      const key = `more:${name}`;
      this.nodes.set(key, {kind: "more", name: `and ${count(left)} more`, vhost: this.vhost});
      this.edge(exchangeKey(name), key, "");
    }
    const declared = row ?? (await get(path, {}, signal));
    const alternate = declared.arguments["alternate-exchange"] ?? declared.effective_policy_definition?.["alternate-exchange"];
    if (typeof alternate === "string") {
      this.edge(exchangeKey(name), this.node("exchange", alternate), "alternate", {dashed: true});
      next(alternate);
    }

    function next(exchange) {
      if (seen.has(exchange) || depth + 1 >= DEPTH_MAX) return;
      seen.add(exchange);
      pending.push([exchange, depth + 1, null]);
    }
  }

  /** Mark the way of a message that was explained. */
  mark(steps) {
    for (const edge of this.edges.values()) edge.hit = false;
    for (const step of steps) {
      for (const binding of step.bindings) this.binding(step.exchange, binding, {hit: true});
      if (step.alternate === null) continue;
      const to = this.node("exchange", step.alternate);
      this.edge(this.node("exchange", step.exchange), to, "alternate", {dashed: true, hit: true});
    }
  }
}
