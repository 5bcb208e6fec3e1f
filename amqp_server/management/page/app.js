// The entry point: the login, the menu, and the page that the address names.

import {get, listen, logOut, session} from "./api.js";
import {append, button, fill, h} from "./dom.js";
import {showLogin} from "./login.js";
import {alarmsRaised, nodesMissing, places, problem, refused} from "./notice.js";
import {repeat} from "./poll.js";
import {parse} from "./route.js";
import {apply, themeSwitch} from "./theme.js";
import {become, may, user} from "./user.js";
import {loadVhosts, vhostSwitch} from "./vhost.js";

/** Path, label in the menu, module, and the tag that a user needs. */
const PAGES = [
  ["", "Overview", "overview", "management"],
  ["queues", "Queues", "queues", "management"],
  ["exchanges", "Exchanges", "exchanges", "management"],
  ["connections", "Connections", "connections", "management"],
  ["channels", "Channels", "channels", "management"],
  ["consumers", "Consumers", "consumers", "management"],
  ["transactions", "Transactions", "transactions", "monitoring"],
  ["streams", "Streams", "streams", "management"],
  ["nodes", "Nodes", "nodes", "monitoring"],
  ["users", "Users", "users", "administrator"],
  ["vhosts", "Virtual hosts", "vhosts", "management"],
  ["policies", "Policies", "policies", "management"],
  ["definitions", "Definitions", "definitions", "administrator"],
];
/** Pages of single objects, and the page of the menu that they belong to. */
const DETAILS = {
  queue: "queues",
  exchange: "exchanges",
  connection: "connections",
  channel: "channels",
  group: "streams",
  user: "users",
};

const main = h("main", {id: "main", tabindex: "-1"});
const menu = h("nav", {id: "menu", "aria-label": "Pages"});
let controller = new AbortController();
let watching = new AbortController();
let entered = false;

function shell() {
  const links = PAGES.filter(([, , , tag]) => may(tag)).map(([path, label]) =>
    h("a", {href: `#/${path}`, "data-page": path}, label),
  );
  fill(menu, links);
  const toggle = button("Menu", () => openMenu(!document.body.classList.contains("menu-open")), "toggle");
  toggle.setAttribute("aria-controls", "menu");
  toggle.setAttribute("aria-expanded", "false");
  const skip = button("Skip to the page", () => main.focus(), "skip");
  const header = h(
    "header",
    {},
    skip,
    toggle,
    h("a", {class: "brand", href: "#/"}, "mqd"),
    vhostSwitch(show),
    h("span", {class: "spring"}),
    themeSwitch(),
    h("span", {class: "who"}, `${user.name} on ${user.node}`),
    button("Log out", leave),
  );
  fill(document.body, header, menu, h("div", {class: "content"}, places, main));
}

/** If there is room for the menu, it is always open. */
function openMenu(open) {
  document.body.classList.toggle("menu-open", open);
  document.querySelector(".toggle")?.setAttribute("aria-expanded", String(open));
}

async function leave() {
  try {
    await logOut();
  } catch (error) {
    if (error.status === 403) location.reload();
    else refused(error);
    return;
  }
  await enter("");
}

async function show() {
  if (!entered) return;
  controller.abort();
  controller = new AbortController();
  const {signal} = controller;
  const {parts, query} = parse(location.hash);
  const [path, ...rest] = parts;
  const of = DETAILS[path] ?? path;
  const page = PAGES.find((each) => each[0] === of);
  openMenu(false);
  for (const link of menu.children) {
    if (link.dataset.page === of) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  problem(null);
  fill(main);
  if (!page || !may(page[3])) {
    append(main, [h("h1", {}, "There is no such page"), h("p", {}, "Or your user may not see it.")]);
    return;
  }
  document.title = `${page[1]} – mqd ${user.node}`;
  const name = path in DETAILS ? path : page[2];
  try {
    const module = await import(`./pages/${name}.js`);
    if (!signal.aborted) await module.show(main, {parts: rest, query, signal});
  } catch (error) {
    if (!signal.aborted && error.name !== "AbortError") problem(error);
  }
}

async function enter(reason) {
  entered = false;
  controller.abort();
  watching.abort();
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  become(await showLogin(document.body, reason));
  await begin();
}

async function begin() {
  entered = true;
  shell();
  try {
    await loadVhosts();
  } catch (error) {
    problem(error);
    return;
  }
  watching = new AbortController();
  const {signal} = watching;
  repeat(signal, async () => alarmsRaised(await get(["alarms"], {}, signal)), () => {});
  await show();
}

apply();
listen({
  out: () => {
    if (entered) enter("The login has ended. Log in again.");
  },
  missing: nodesMissing,
});
// The user may choose the current page again; then the address does not change.
menu.addEventListener("click", () => openMenu(false));
addEventListener("hashchange", async () => {
  await show();
  if (entered) main.focus();
});
try {
  const told = await session();
  become(told);
  await (told.name ? begin() : enter(""));
} catch (error) {
  fill(document.body, h("main", {class: "entrance"}, h("p", {class: "refusal", role: "alert"}, error.message)));
}
