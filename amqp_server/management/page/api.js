// Requests to the management API. The session is in a cookie that scripts cannot read; a change shows `csrf`, too.

const BASE = new URL("api/", document.baseURI);

let csrf = "";
let loggedOut = () => {};
let missingNodes = () => {};

export class ApiError extends Error {
  constructor(status, body) {
    const reason = Array.isArray(body.reason) ? body.reason.join("; ") : body.reason;
    super(reason || `the node answered with status ${status}`);
    this.status = status;
    this.kind = body.error ?? "";
  }
}

/** `out` is called when the session has ended, `missing` with the names of nodes whose part an answer lacks. */
export function listen({out, missing}) {
  loggedOut = out;
  missingNodes = missing;
}

function url(parts, query) {
  // A browser takes these out of a path, encoded or not, and would ask for something else.
  const lost = parts.find((part) => part === "." || part === "..");
  if (lost) throw new ApiError(0, {error: "name", reason: `a browser cannot ask for '${lost}': use mqctl`});
  const made = new URL(parts.map((part) => encodeURIComponent(part)).join("/"), BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") made.searchParams.set(name, value);
  }
  return made;
}

async function send(method, parts, {query, body, signal, headers, raw} = {}) {
  const options = {
    method,
    signal,
    credentials: "same-origin",
    cache: "no-store",
    redirect: "error",
    headers: {"x-mqd-csrf": csrf, ...headers},
  };
  if (method !== "GET") {
    options.headers["content-type"] = "application/json";
    options.body = typeof body === "string" ? body : JSON.stringify(body ?? {});
  }
  const asked = url(parts, query);
  let response;
  try {
    response = await fetch(asked, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, {error: "unreachable", reason: "the node does not answer"});
  }
  const text = await response.text();
  if (raw && response.ok) return text;
  let told = null;
  try {
    told = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, {reason: "the answer is no JSON"});
  }
  if (!response.ok) {
    const error = new ApiError(response.status, told ?? {});
    // The second case: the user has logged in again in another tab, and this tab belongs to the old session.
    const ended = error.kind === "not_authorized" || (response.status === 403 && error.kind === "forbidden");
    if (ended && parts[0] !== "session") loggedOut();
    throw error;
  }
  const missing = response.headers.get("x-missing-nodes");
  if (missing) missingNodes(missing.split(","));
  return told;
}

export const get = (parts, query, signal) => send("GET", parts, {query, signal});
/** The answer as text: its numbers may be larger than those of scripts. */
export const getText = (parts) => send("GET", parts, {raw: true});
export const put = (parts, body, query) => send("PUT", parts, {body, query});
export const post = (parts, body, query) => send("POST", parts, {body, query});
export const remove = (parts, query, headers) => send("DELETE", parts, {query, headers});

/** The part of a path for an exchange; the default exchange has an empty name. */
export const exchangePart = (exchange) => exchange || "amq.default";

/** Return the user who is logged in; the name is empty without a login. */
export async function session() {
  return known(await send("GET", ["session"]));
}

export async function logIn(name, password) {
  return known(await send("POST", ["session"], {body: {name, password}}));
}

export async function logOut() {
  await send("DELETE", ["session"]);
  csrf = "";
}

function known(told) {
  csrf = told.csrf ?? "";
  return {name: told.name, tags: told.tags ?? [], node: told.node ?? "", clustered: told.clustered ?? false};
}
