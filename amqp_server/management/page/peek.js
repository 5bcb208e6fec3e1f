// The messages of a queue: the first ones are got, shown, and requeued at their position. A stream is read.

import {post} from "./api.js";
import {button, fill, h} from "./dom.js";
import {ask, input, labelled} from "./dialog.js";
import {bytes, count, json, table} from "./format.js";
import {refused} from "./notice.js";

/** Maximum number of messages that the node gives at a time. */
const SEARCHED = 1_000;
const SHOWN_MAX = 100;
/** Bytes of a payload that are shown; bytes of each payload that is searched. */
const PAYLOAD_BYTES = 51_200;
const SEARCHED_BYTES = 10_240;

const LINE = 160;

const NOTES = {
  stream: "They are read as by a consumer of its own. Nothing changes in the stream.",
  quorum:
    "They are put back to their place, and each look counts as a return: after more returns than the delivery limit " +
    "allows (20, unless the queue says otherwise) a message is dead-lettered or dropped.",
  classic: "They are put back to their place, and count as delivered once more.",
};

/** `type` is the type of the queue. */
export function peek(vhost, queue, type) {
  const isStream = type === "stream";
  const fields = {
    offset: {name: "offset", label: "From", value: "last", help: "first, last, an offset, or an age such as 1h"},
    count: {name: "count", label: "Messages", type: "number", min: 1, max: SHOWN_MAX, value: 10},
    text: {
      name: "text",
      label: "Search for",
      help: `In payload, routing key and properties of ${count(SEARCHED)} messages, the first ${bytes(SEARCHED_BYTES)} of each; empty: all are shown.`,
    },
  };
  const inputs = {offset: input(fields.offset), count: input(fields.count), text: input(fields.text)};
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
    h("button", {}, "Show messages"),
    button("Hide", () => fill(found)),
  );

  async function look() {
    if (type === "quorum" && !(await ask("Show messages?", NOTES.quorum, "Show them"))) return;
    const text = inputs.text.value;
    const wanted = Math.min(SHOWN_MAX, Math.max(1, Number(inputs.count.value) || 1));
    const truncate = text ? SEARCHED_BYTES : PAYLOAD_BYTES;
    const asked = {count: text ? SEARCHED : wanted, encoding: "auto", truncate};
    const offset = inputs.offset.value.trim();
    const more = isStream ? {offset: /^\d+$/.test(offset) ? Number(offset) : offset} : {ackmode: "ack_requeue_true"};
    fill(found, h("p", {}, "Looking …"));
    try {
      const messages = await post(["queues", vhost, queue, isStream ? "read" : "get"], {...asked, ...more});
      const matching = text ? messages.filter((message) => has(message, text)) : messages;
      const told = text
        ? `${count(matching.length)} of ${count(messages.length)} messages match.`
        : `${count(messages.length)} messages.`;
      fill(found, h("p", {}, told), matching.slice(0, wanted).map((message) => article(message, truncate)));
    } catch (error) {
      fill(found);
      refused(error);
    }
  }

  const note = h("p", {class: "about"}, NOTES[type] ?? NOTES.classic);
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

function article(message, truncate) {
  const length = message.payload_encoding === "base64" ? "in Base64, " : "";
  const cut = message.payload_bytes > truncate ? `, the first ${bytes(truncate)} of it` : "";
  const head = [
    message.offset !== undefined && `offset ${message.offset}`,
    `exchange ${message.exchange || "(default)"}`,
    `key ${message.routing_key}`,
    `${length}${bytes(message.payload_bytes)}${cut}`,
    message.redelivered && "redelivered",
  ];
  return h(
    "article",
    {class: "message card"},
    h("p", {class: "name"}, head.filter(Boolean).join(" · ")),
    Object.keys(message.properties).length > 0 && h("pre", {class: "properties"}, properties(message)),
    h("pre", {tabindex: "0"}, message.payload),
  );
}
