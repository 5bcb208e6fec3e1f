// The messages of a queue or stream, shown where they lie: nothing changes by that.

import {get, post} from "./api.js";
import {button, fill, h} from "./dom.js";
import {ask, input, labelled} from "./dialog.js";
import {bytes, count, json, table, time} from "./format.js";
import {attempt, done, refused} from "./notice.js";

/** Messages that a search looks through, and maximum number that the node gives at a time. */
const SEARCHED = {queue: 10_000, stream: 1_000};
const AT_ONCE = 1_000;
const SHOWN_MAX = 100;
/** Bytes of a payload that are shown; bytes of each payload that is searched. */
const PAYLOAD_BYTES = 51_200;
const SEARCHED_BYTES = 10_240;

const LINE = 160;

const NOTES = {
  stream: "They are read as by a consumer of its own. Nothing changes in the stream.",
  queue: "They stay where they are, and consumers get them as before. Those that consumers hold are not shown.",
};

/** `type` is the type of the queue. */
export function peek(vhost, queue, type) {
  const kind = type === "stream" ? "stream" : "queue";
  const isStream = kind === "stream";
  const searched = SEARCHED[kind];
  const fields = {
    offset: {name: "offset", label: "From", value: "last", help: "first, last, an offset, or an age such as 1h"},
    count: {name: "count", label: "Messages", type: "number", min: 1, max: SHOWN_MAX, value: 10},
    text: {
      name: "text",
      label: "Search for",
      help: `In payload, routing key and properties of ${count(searched)} messages, the first ${bytes(SEARCHED_BYTES)} of each; empty: all are shown.`,
    },
    waiting: {name: "waiting", label: "Also those that wait", type: "checkbox"},
  };
  const inputs = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, input(field)]));
  const found = h("div", {class: "messages", "aria-live": "polite"});
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        look();
      },
    },
    isStream && labelled(fields.offset, inputs.offset),
    labelled(fields.count, inputs.count),
    labelled(fields.text, inputs.text),
    !isStream && labelled(fields.waiting, inputs.waiting),
    h("button", {}, "Show messages"),
    button("Hide", () => fill(found)),
  );

  async function look() {
    const text = inputs.text.value;
    const wanted = Math.min(SHOWN_MAX, Math.max(1, Number(inputs.count.value) || 1));
    const truncate = text ? SEARCHED_BYTES : PAYLOAD_BYTES;
    const most = text ? searched : wanted;
    fill(found, h("p", {}, "Looking …"));
    try {
      const messages = await (isStream ? read(most, truncate) : seen(most, truncate));
      const matching = text ? messages.filter((message) => has(message, text)) : messages;
      const told = text
        ? `${count(matching.length)} of ${count(messages.length)} messages match.`
        : `${count(messages.length)} messages.`;
      fill(found, h("p", {}, told), matching.slice(0, wanted).map((message) => article(message, truncate, cancelling(message))));
    } catch (error) {
      fill(found);
      refused(error);
    }
  }

  function read(most, truncate) {
    const offset = inputs.offset.value.trim();
    const from = /^\d+$/.test(offset) ? Number(offset) : offset;
    return post(["queues", vhost, queue, "read"], {offset: from, count: most, encoding: "auto", truncate});
  }

  /** One request looks at a limited number of bytes. */
  async function seen(most, truncate) {
    const messages = [];
    const waiting = inputs.waiting.checked;
    let after = "";
    while (after !== null && messages.length < most) {
      const asked = {after, truncate, count: Math.min(AT_ONCE, most - messages.length), ...(waiting && {waiting})};
      const told = await get(["queues", vhost, queue, "peek"], asked);
      messages.push(...told.messages);
      after = told.next;
    }
    return messages;
  }

  /**
   * Return a button for a message that waits and has an id. Who sees the message may cancel it: both need the permission
   * to read the queue.
   */
  function cancelling(message) {
    const id = message.properties.message_id;
    if (message.due === undefined || !id) return null;
    return button("Cancel delivery", async () => {
      const text = `All messages of ${queue} that wait and have this message-id are deleted, and never delivered. This cannot be undone.`;
      if (!(await ask(`Cancel the delivery of ${id}?`, text, "Cancel delivery", "Keep it"))) return;
      await attempt(null, async () => {
        const cancelled = await cancel(id);
        done(cancelled ? `${count(cancelled)} messages were cancelled.` : "None waits any more: it was too late.");
      });
      look();
    }, "danger");
  }

  /** One request looks at a part of the messages that wait. */
  async function cancel(id) {
    let cancelled = 0;
    let told = {};
    while (told.next !== null) {
      told = await post(["queues", vhost, queue, "cancel"], {message_id: id, ...(told.next && {after: told.next})});
      cancelled += told.cancelled;
    }
    return cancelled;
  }

  const note = h("p", {class: "about"}, NOTES[kind]);
  return h("section", {}, h("h2", {}, "Messages"), note, form, found);
}

function has(message, text) {
  const wanted = text.toLowerCase();
  const places = [message.payload, message.routing_key, message.exchange, JSON.stringify(message.properties)];
  return places.some((each) => each.toLowerCase().includes(wanted));
}

/** Return them in one line, if they are few. */
function properties(message) {
  const line = table(message.properties);
  return line.length <= LINE ? line : json(message.properties);
}

function article(message, truncate, action) {
  const length = message.payload_encoding === "base64" ? "in Base64, " : "";
  const cut = message.payload_bytes > truncate ? `, the first ${bytes(truncate)} of it` : "";
  const head = [
    message.offset !== undefined && `offset ${message.offset}`,
    `exchange ${message.exchange || "(default)"}`,
    `key ${message.routing_key}`,
    `${length}${bytes(message.payload_bytes)}${cut}`,
    message.redelivered && "redelivered",
    message.due !== undefined && `waits until ${time(message.due)}`,
  ];
  return h(
    "article",
    {class: "message card"},
    h("p", {class: "name"}, head.filter(Boolean).join(" · ")),
    Object.keys(message.properties).length > 0 && h("pre", {class: "properties"}, properties(message)),
    h("pre", {tabindex: "0"}, message.payload),
    action,
  );
}
