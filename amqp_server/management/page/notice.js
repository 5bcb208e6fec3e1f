// Notices in a line that screen readers read out: done, refused, or nodes that do not answer.

import {button, fill, h, say} from "./dom.js";

const SHOWN_MS = 6_000;
/** Texts by the status of an answer. */
const TEXTS = {
  401: "Your user may not see this.",
  404: "There is nothing of this name, or no more.",
};

const notices = h("div", {class: "notices", role: "status", "aria-live": "polite"});
const trouble = h("div", {class: "trouble", role: "alert", hidden: true});
const missing = h("div", {class: "trouble missing", role: "status", hidden: true});

const raised = h("div", {class: "trouble alarms", role: "alert", "aria-label": "Alarms", hidden: true});

export const places = [trouble, raised, missing, notices];

/** Show the alarms of all nodes on each page, those that block publishers first. */
export function alarmsRaised(rows) {
  const lines = rows.map((row) => {
    const blocks = row.blocks_publishers ? " Publishers are blocked." : "";
    return `${row.node}: ${row.name} alarm: ${row.text || "no more is known"}.${blocks}`;
  });
  // The numbers in a text change all the time, and a screen reader reads out what changes.
  const kinds = JSON.stringify(rows.map((row) => [row.node, row.name]));
  if (raised.dataset.kinds === kinds) return;
  raised.dataset.kinds = kinds;
  raised.hidden = rows.length === 0;
  fill(raised, h("ul", {}, lines.map((line) => h("li", {}, line))));
}

export function done(text) {
  const line = h("p", {class: "notice"}, text);
  notices.append(line);
  setTimeout(() => line.remove(), SHOWN_MS);
}

export function refused(error) {
  const line = h("p", {class: "notice refused"}, error.message);
  line.append(button("Close", () => line.remove(), "small"));
  notices.append(line);
}

/** The reason why the shown data is not up to date; null: it is up to date. */
export function problem(error) {
  trouble.hidden = error === null;
  document.body.classList.toggle("absent", error !== null && error.status in TEXTS);
  if (error === null) fill(trouble);
  else say(trouble, TEXTS[error.status] ?? `Not up to date: ${error.message}`);
}

let missingSince = 0;

export function nodesMissing(names) {
  missingSince = Date.now();
  missing.hidden = false;
  fill(missing, `Does not answer, and its part is missing: ${names.join(", ")}`);
  setTimeout(() => {
    if (Date.now() - missingSince >= SHOWN_MS * 2) missing.hidden = true;
  }, SHOWN_MS * 2 + 10);
}

/** Do something that the node may refuse; return true if it did not. */
export async function attempt(text, action) {
  try {
    await action();
  } catch (error) {
    refused(error);
    return false;
  }
  if (text) done(text);
  return true;
}
