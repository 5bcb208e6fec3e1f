// The vhost of the lists: one vhost, or all.

import {get} from "./api.js";
import {fill, h} from "./dom.js";

const KEY = "mqd-vhost";

let names = [];
let chosen = "";

try {
  chosen = sessionStorage.getItem(KEY) ?? "";
} catch {
  // All vhosts.
}

const select = h("select", {class: "vhost", "aria-label": "Virtual host"});

/** Empty: all vhosts. */
export function vhost() {
  return chosen;
}

export function vhosts() {
  return names;
}

/** True if lists may have rows of several vhosts. */
export function several() {
  return chosen === "" && names.length > 1;
}

/** ["queues"], or ["queues", "/"] if one vhost is chosen. */
export function ofVhost(...parts) {
  return chosen ? [...parts, chosen] : parts;
}

/** A field for forms. */
export function vhostField() {
  return {name: "vhost", label: "Virtual host", type: "select", options: names, value: chosen || names[0]};
}

export async function loadVhosts() {
  const rows = await get(["vhosts"], {columns: "name"});
  names = rows.map((row) => row.name).sort();
  if (!names.includes(chosen)) chosen = "";
  fill(
    select,
    h("option", {value: ""}, "All virtual hosts"),
    names.map((name) => h("option", {value: name}, name)),
  );
  select.value = chosen;
}

export function vhostSwitch(changed) {
  select.onchange = () => {
    chosen = select.value;
    try {
      sessionStorage.setItem(KEY, chosen);
    } catch {
      // The choice holds until the page is loaded again.
    }
    changed();
  };
  return select;
}
