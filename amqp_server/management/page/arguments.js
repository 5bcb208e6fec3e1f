// Fields for the arguments of queues and exchanges and for the keys of policies, one for each that this node knows;
// and what policies would set.

import {get} from "./api.js";
import {input, labelled, object, valueOf} from "./dialog.js";
import {fill, h} from "./dom.js";
import {table} from "./format.js";
import {refused} from "./notice.js";

let known;

/** Call `open` with what the node knows: the lists queues, exchanges and policies, and `apply-to`. */
export async function withArguments(open) {
  try {
    known ??= await get(["arguments"]);
  } catch (error) {
    refused(error);
    return;
  }
  open(known);
}

const FLAGS = [["", ""], ["true", "true"], ["false", "false"]];

function fieldOf(row, value) {
  const label = row.name;
  const help = [row.text, row.values].filter(Boolean).join(": ");
  const common = {name: row.name, label, help, value: value === undefined ? "" : String(value)};
  if (row.kind === "boolean") return {...common, type: "select", options: FLAGS};
  if (row.kind === "choice") return {...common, type: "select", options: ["", ...row.choices]};
  return {...common, type: row.kind === "number" ? "number" : "text"};
}

function typed(row, text) {
  if (row.kind === "boolean") return text === "true";
  return row.kind === "number" ? Number(text) : text;
}

/** Whether a field for this row can show the value, and give it back. */
function fits(row, value) {
  if (row.kind === "boolean") return typeof value === "boolean";
  if (row.kind === "number") return Number.isInteger(value);
  return typeof value === "string" && value !== "" && (row.kind === "text" || row.choices.includes(value));
}

/**
 * Fields for a form, as its field `made`: `rows(kind)` are those for the value `kind` of the field `by`, which the user
 * may change. What has no field is entered as JSON.
 */
export class ArgumentFields {
  constructor(title, by, rows, before = {}) {
    this.by = by;
    this.rows = rows;
    /** What the user has entered, by name: a field that comes back has it again. */
    this.texts = new Map();
    this.before = before;
    this.shown = [];
    this.fields = h("div", {class: "argument-fields"});
    this.others = {name: "arguments", label: "Others", type: "json", rows: 2, help: "As a JSON object."};
    this.element = h("details", {open: Object.keys(before).length > 0}, h("summary", {}, title), this.fields);
  }

  attach(inputs) {
    this.chosen = inputs.get(this.by);
    this.chosen.addEventListener("change", () => this.show());
    const kind = this.chosen.value;
    const fitting = this.rows(kind).filter((row) => row.name in this.before && fits(row, this.before[row.name]));
    for (const row of fitting) this.texts.set(row.name, String(this.before[row.name]));
    const rest = {...this.before};
    for (const row of fitting) delete rest[row.name];
    this.others.value = rest;
    this.rest = input(this.others);
    this.element.append(labelled(this.others, this.rest));
    this.show();
  }

  show() {
    this.keep();
    this.shown = this.rows(this.chosen.value).map((row) => {
      const field = fieldOf(row, this.texts.get(row.name));
      return {row, field, element: input(field)};
    });
    fill(this.fields, this.shown.map(({field, element}) => labelled(field, element)));
  }

  keep() {
    for (const {row, element} of this.shown) this.texts.set(row.name, element.value);
  }

  value() {
    const found = {};
    for (const {row, element} of this.shown) {
      if (element.validity.badInput) throw new Error(`${row.name}: this is no number`);
      if (element.value !== "") found[row.name] = typed(row, element.value);
    }
    return {...found, ...valueOf(this.others, this.rest)};
  }
}

const PAUSE_MS = 300;

/** Says, as a form's field `made`, which policies would apply to what the form declares. */
export class ApplyingPolicies {
  /** `typeOf(inputs)`: the type of the queue, or `exchange`. */
  constructor(typeOf) {
    this.typeOf = typeOf;
    this.element = h("p", {class: "applying", role: "status"});
  }

  attach(inputs) {
    this.inputs = inputs;
    for (const name of ["vhost", "name", "type"]) {
      inputs.get(name)?.addEventListener("input", () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.ask(), PAUSE_MS);
      });
    }
  }

  async ask() {
    const name = this.inputs.get("name").value;
    const asked = (this.asked = {name, type: this.typeOf(this.inputs)});
    if (!name) return fill(this.element);
    try {
      const found = await get(["applied-policies", this.inputs.get("vhost").value], asked);
      // A later question may have been answered before.
      if (this.asked === asked) fill(this.element, this.text(found));
    } catch {
      fill(this.element);
    }
  }

  text({policy, operator_policy: operators, definition}) {
    const names = [policy && `policy ${policy}`, operators && `operator policy ${operators}`].filter(Boolean);
    return names.length ? `What would apply: ${names.join(" and ")} (${table(definition)}).` : "No policy would apply.";
  }
}
