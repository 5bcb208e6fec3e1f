// Dark or light: the system's setting, unless the user has chosen.

import {h} from "./dom.js";

const KEY = "mqd-theme";
const CHOICES = {auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark"};

function stored() {
  try {
    const value = localStorage.getItem(KEY);
    return value in CHOICES ? value : "auto";
  } catch {
    return "auto";
  }
}

export function apply(choice = stored()) {
  const root = document.documentElement;
  if (choice === "auto") delete root.dataset.theme;
  else root.dataset.theme = choice;
}

export function themeSwitch() {
  const options = Object.entries(CHOICES).map(([value, label]) => h("option", {value}, label));
  const select = h("select", {class: "theme", "aria-label": "Theme"}, options);
  select.value = stored();
  select.addEventListener("change", () => {
    try {
      localStorage.setItem(KEY, select.value);
    } catch {
      // The choice holds until the page is loaded again.
    }
    apply(select.value);
  });
  return select;
}
