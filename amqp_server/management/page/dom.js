// Elements made of data. All texts become text nodes, never HTML.

/** h("a", {href: "#/", class: "plain", onclick: f}, "text", [more]) */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** Like `h`, for SVG. */
export function svg(tag, props, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replace the content of an element with these. */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** Set a text; change nothing if it is there already. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) fill(element, whole(wanted));
}

/** The pieces of a text in which a line may end before an arrow, but not within or behind it: connections are called so. */
function whole(text) {
  return text.split(/(-> ?\S*)/).map((piece) => (piece.startsWith("->") ? h("span", {class: "arrow"}, piece) : piece));
}

/** A name that a client has chosen: shown whole, with its line breaks. */
export function name(text, href) {
  const shown = whole(text === "" ? "(empty name)" : text);
  return href === undefined ? h("span", {class: "name"}, shown) : h("a", {class: "name", href}, shown);
}

export function button(label, action, kind = "") {
  return h("button", {type: "button", class: kind, onclick: action}, label);
}
