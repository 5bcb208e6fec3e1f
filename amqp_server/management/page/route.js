// Addresses within the page: #/queue/VHOST/NAME?page=2, each part encoded.

export function href(parts, query) {
  const path = parts.map((part) => encodeURIComponent(part)).join("/");
  const entries = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== "");
  const asked = new URLSearchParams(entries).toString();
  return `#/${path}${asked ? `?${asked}` : ""}`;
}

export function parse(hash) {
  const [path, asked = ""] = split(hash.replace(/^#\/?/, ""));
  let parts;
  try {
    parts = path.split("/").map((part) => decodeURIComponent(part));
  } catch {
    parts = [""];
  }
  return {parts, query: Object.fromEntries(new URLSearchParams(asked))};
}

function split(text) {
  const at = text.indexOf("?");
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

export function go(parts, query) {
  location.hash = href(parts, query);
}

/** Change the query of the current address, without a new entry in the history. */
export function keep(query) {
  const {parts} = parse(location.hash);
  history.replaceState(null, "", href(parts, query));
}
