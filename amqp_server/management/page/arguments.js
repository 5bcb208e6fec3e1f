// Fields for the arguments of queues, exchanges and bindings and for the keys of policies, one for each that this node
// knows; and what policies would set.

import {get} from "./api.js";
import {input, labelled, valueOf} from "./dialog.js";
import {button, fill, h} from "./dom.js";
import {table} from "./format.js";
import {refused} from "./notice.js";

let known;

/** Call `open` with what the node knows: the lists queues, exchanges, bindings and policies, and `apply-to`. */
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

/** What has no field, as a JSON object. */
class JsonObject {
  constructor() {
    this.field = {name: "arguments", label: "Others", type: "json", rows: 2, help: "As a JSON object."};
  }

  attach(value) {
    this.input = input({...this.field, value});
    return labelled(this.field, this.input);
  }

  value() {
    return valueOf(this.field, this.input);
  }
}

/** What a header may be; `field` is what its value is entered in. */
const HEADERS = {
  text: {label: "text", field: {type: "text"}, of: (text) => text},
  number: {label: "number", field: {type: "text"}, of: numberOf},
  flag: {label: "true or false", field: {type: "select", options: ["true", "false"]}, of: (text) => text === "true"},
  present: {label: "any value", field: null, of: () => null},
  json: {label: "JSON", field: {type: "text"}, of: jsonOf},
};

function numberOf(text, name) {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) throw new Error(`${name}: this is no number`);
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) {
    throw new Error(`${name}: this number has more digits than a browser keeps; use mqctl declare_binding`);
  }
  return value;
}

function jsonOf(text, name) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${name}: this is no JSON`);
  }
}

/** What has no field, as any number of names, each with a value and the type of the value. */
export class NamedValues {
  constructor(title, help) {
    this.entries = new Set();
    this.list = h("div", {class: "named-values"});
    this.element = h(
      "fieldset",
      {},
      h("legend", {}, title),
      help && h("small", {}, help),
      this.list,
      button("Add a name", () => this.add().name.focus(), "small"),
    );
  }

  attach() {
    this.add();
    return this.element;
  }

  add() {
    const options = Object.entries(HEADERS).map(([kind, {label}]) => [kind, label]);
    const entry = {name: input({name: "header-name"}), kind: input({name: "header-type", type: "select", options})};
    const place = h("div");
    const show = () => {
      const {field} = HEADERS[entry.kind.value];
      const text = entry.value?.value;
      entry.value = field && input({...field, name: "header-value"});
      if (entry.value && text && field.type === "text") entry.value.value = text;
      fill(place, field && labelled({...field, label: "Value"}, entry.value));
    };
    entry.kind.addEventListener("change", show);
    show();
    const line = h(
      "div",
      {class: "named-value"},
      labelled({label: "Name"}, entry.name),
      labelled({label: "Type"}, entry.kind),
      place,
      button("Remove", () => {
        this.entries.delete(entry);
        line.remove();
      }, "small"),
    );
    this.entries.add(entry);
    this.list.append(line);
    return entry;
  }

  value() {
    // No prototype, because a header may be called `__proto__`.
    const found = Object.create(null);
    for (const {name, kind, value} of this.entries) {
      const text = value?.value ?? "";
      if (name.value === "") {
        if (kind.value === "text" && text === "") continue;
        throw new Error("a value has no name");
      }
      if (name.value in found) throw new Error(`${name.value} is there twice`);
      found[name.value] = HEADERS[kind.value].of(text, name.value);
    }
    return found;
  }
}

/**
 * Fields for a form, as its field `made`: `rows(kind)` are those for the value `kind` of the field `by`, which the user
 * may change; without `by` they are always the same. What has no field is entered in `others`.
 */
export class ArgumentFields {
  constructor(title, by, rows, before = {}, others = new JsonObject()) {
    this.by = by;
    this.rows = rows;
    /** What the user has entered, by name: a field that comes back has it again. */
    this.texts = new Map();
    this.before = before;
    this.shown = [];
    this.fields = h("div", {class: "argument-fields"});
    this.others = others;
    this.element = h("details", {open: Object.keys(before).length > 0}, h("summary", {}, title), this.fields);
  }

  attach(inputs) {
    this.chosen = inputs.get(this.by);
    this.chosen?.addEventListener("change", () => this.show());
    const fitting = this.rows(this.chosen?.value).filter((row) => row.name in this.before && fits(row, this.before[row.name]));
    for (const row of fitting) this.texts.set(row.name, String(this.before[row.name]));
    const rest = {...this.before};
    for (const row of fitting) delete rest[row.name];
    this.element.append(this.others.attach(rest));
    this.show();
  }

  show() {
    this.keep();
    this.shown = this.rows(this.chosen?.value).map((row) => {
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
    const others = this.others.value();
    for (const name of Object.keys(others)) {
      if (name in found) throw new Error(`${name} is there twice`);
    }
    return Object.assign(Object.create(null), found, others);
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
