// Forms and questions in a dialog window. Escape closes it, and the focus goes back to the earlier element.

import {button, fill, h} from "./dom.js";

function open(title, content) {
  const before = document.activeElement;
  const heading = h("h2", {id: "dialog-title"}, title);
  const dialog = h("dialog", {"aria-labelledby": "dialog-title"}, heading, content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before instanceof HTMLElement && before.isConnected) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Resolves with true if the question was answered with `label`; `no` is on the other button. */
export function ask(title, text, label, no = "Cancel") {
  return new Promise((resolve) => {
    let answer = false;
    const yes = h("button", {class: "danger"}, label);
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: () => {
          answer = true;
        },
      },
      h("p", {class: "text"}, text),
      h("div", {class: "buttons"}, button(no, () => dialog.close()), yes),
    );
    const dialog = open(title, form);
    dialog.addEventListener("close", () => resolve(answer));
  });
}

/**
 * fields: {name, label, type, value, options, help, required, rows}, of the types text, password, number, checkbox,
 * select, textarea and json. A field may have `made` in place of a type: its own element, `attach`, which gets the
 * elements of all fields by name, and, unless it only says something, the function `value`. `action` gets the values by name; what it throws is shown,
 * and the form stays.
 */
export function form(title, fields, label, action) {
  const refusal = h("p", {class: "refusal", role: "alert"});
  const inputs = new Map(fields.map((field) => [field.name, field.made?.element ?? input(field)]));
  for (const field of fields) field.made?.attach?.(inputs);
  const asking = fields.filter((field) => !field.made || field.made.value);
  const submit = h("button", {class: "primary"}, label);
  const element = h(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        fill(refusal);
        submit.disabled = true;
        try {
          const values = {};
          for (const field of asking) values[field.name] = valueOf(field, inputs.get(field.name));
          await action(values);
          dialog.close();
        } catch (error) {
          fill(refusal, error.message);
        }
        submit.disabled = false;
      },
    },
    fields.map((field) => labelled(field, inputs.get(field.name))),
    refusal,
    h("div", {class: "buttons"}, button("Cancel", () => dialog.close()), submit),
  );
  const dialog = open(title, element);
  return dialog;
}

export function labelled(field, element) {
  if (field.made) return element;
  const help = field.help && h("small", {}, field.help);
  if (field.type === "checkbox") return h("label", {class: "check"}, element, field.label, help);
  return h("label", {class: field.type === "number" ? "field number-field" : "field"}, h("span", {}, field.label), element, help);
}

export function input(field) {
  const common = {name: field.name, required: field.required, placeholder: field.placeholder};
  if (field.type === "select") {
    const options = field.options.map((option) => {
      const [value, text] = Array.isArray(option) ? option : [option, option];
      return h("option", {value}, text);
    });
    const select = h("select", common, options);
    if (field.value !== undefined) select.value = field.value;
    return select;
  }
  if (field.type === "textarea" || field.type === "json") {
    const value = field.type === "json" ? JSON.stringify(field.value ?? {}, null, 1) : (field.value ?? "");
    return h("textarea", {...common, rows: field.rows ?? 4, spellcheck: "false", value});
  }
  if (field.type === "checkbox") {
    const box = h("input", {type: "checkbox", name: field.name});
    box.checked = Boolean(field.value);
    return box;
  }
  return h("input", {
    ...common,
    type: field.type ?? "text",
    min: field.min,
    max: field.max,
    autocomplete: field.autocomplete ?? "off",
    spellcheck: "false",
    value: field.value ?? "",
  });
}

export function valueOf(field, element) {
  if (field.made) return field.made.value();
  if (field.type === "checkbox") return element.checked;
  if (field.type === "number") return element.value === "" ? undefined : Number(element.value);
  if (field.type === "json") return object(element.value, field.label);
  return element.value;
}

/** A JSON object that the user has typed. */
export function object(text, label) {
  let value;
  try {
    value = JSON.parse(text.trim() || "{}");
  } catch {
    throw new Error(`${label}: this is no JSON`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error(`${label}: expected an object, as {"name": "value"}`);
  }
  return value;
}
