// One queue: its state, its messages, and its actions.

import {get, post, put, remove} from "../api.js";
import {Chart, lengths, rates} from "../chart.js";
import {append, button, fill, h, name} from "../dom.js";
import {ask, form} from "../dialog.js";
import {Facts} from "../facts.js";
import {bytes, count, duration, rate, short, table, time} from "../format.js";
import {section} from "../list.js";
import {copyForm, moveForm, purge, purgeForm, redrive} from "../moving.js";
import {attempt, done} from "../notice.js";
import {peek} from "../peek.js";
import {poll} from "../poll.js";
import {publishForm} from "../publishing.js";
import {go, href} from "../route.js";
import {status} from "../status.js";
import {Table} from "../table.js";
import {may} from "../user.js";
import {features} from "./queues.js";

const RANGE = {lengths_age: 600, lengths_incr: 5, msg_rates_age: 600, msg_rates_incr: 5};

const FACTS = [
  ["Virtual host", (row) => row.vhost],
  ["Type", (row) => row.type],
  ["Features", features],
  ["State", (row) => row.state],
  ["Paused", (row) => [row.deliveries_paused && "deliveries", row.publishes_paused && "publishes"].filter(Boolean).join(", ")],
  ["Protected", (row) => (row.protected_from_deletion ? "from deletion" : undefined)],
  ["Node", (row) => row.node],
  ["Leader", (row) => row.leader],
  ["Members", (row) => row.members?.join(", ")],
  ["Online", (row) => row.online?.join(", ")],
  ["Policy", (row) => row.policy],
  ["Operator policy", (row) => row.operator_policy],
  ["In effect by policy", (row) => table(row.effective_policy_definition)],
  ["Arguments", (row) => table(row.arguments)],
  ["Ready", (row) => count(row.messages_ready)],
  ["Unacknowledged", (row) => count(row.messages_unacknowledged)],
  ["Oldest message", (row) => row.oldest_message_age_ms !== undefined && row.oldest_message_age_ms !== null && `${duration(row.oldest_message_age_ms)} old`],
  ["Size", (row) => bytes(row.message_bytes)],
  ["In memory", (row) => bytes(row.memory)],
  ["Consumers", (row) => count(row.consumers)],
  ["Owner", (row) => row.owner_pid_details?.name, (row) => href(["connection", row.owner_pid_details?.name ?? ""])],
  ["First offset", (row) => row.first_offset === undefined ? undefined : count(row.first_offset)],
  ["Next offset", (row) => row.next_offset === undefined ? undefined : count(row.next_offset)],
  ["Segments", (row) => row.segments],
  ["Oldest message", (row) => row.oldest_timestamp && time(row.oldest_timestamp)],
  ["Lost messages", (row) => row.lost_messages || undefined],
  ["Compression", (row) => row.compression],
];

const CONSUMERS = [
  {label: "Tag", text: (row) => row.consumer_tag},
  {
    label: "Channel",
    text: (row) => row.channel_details.name ?? "on another node",
    href: (row) => row.channel_details.name && href(["channel", row.channel_details.name]),
  },
  {label: "User", text: (row) => row.channel_details.user ?? ""},
  {label: "Node", text: (row) => row.channel_details.node ?? ""},
  {label: "State", text: (row) => row.activity_status},
  {label: "Acks", text: (row) => (row.ack_required ? "required" : "none")},
  {label: "Prefetch", number: true, text: (row) => count(row.prefetch_count)},
  {label: "Lag", number: true, text: (row) => (row.lag === undefined ? "–" : count(row.lag))},
];

const BINDINGS = [
  {label: "From", text: (row) => row.source || "(default)", href: (row) => href(["exchange", row.vhost, row.source])},
  {label: "Routing key", text: (row) => row.routing_key},
  {label: "Arguments", text: (row) => table(row.arguments)},
];

export async function show(root, {parts: [vhost, queue], signal}) {
  const facts = new Facts(FACTS);
  const waiting = new Chart("Messages", short);
  const moving = new Chart("Messages per second", rate);
  const consumers = new Table(CONSUMERS, (row) => JSON.stringify([row.channel_details, row.consumer_tag]), {
    caption: "Consumers",
    empty: "Nobody consumes from it.",
  });
  const bindings = new Table(BINDINGS, (row) => JSON.stringify([row.source, row.properties_key]), {caption: "Bindings"});
  const path = ["queues", vhost, queue];
  const messages = h("div", {});
  const buttons = h("div", {class: "buttons"});
  let looked = false;
  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Queue ", name(queue)), buttons),
    facts.element,
    h("div", {class: "charts"}, waiting.element, moving.element),
    messages,
    section("Consumers", consumers.element),
    section("Bindings to it", bindings.element),
  ]);
  const again = poll(signal, async () => {
    const row = await get(path, RANGE, signal);
    facts.show(row);
    if (!looked) {
      looked = true;
      append(buttons, actions(row, () => again()));
      // A consumer group has no messages of its own.
      append(messages, [row.type !== "stream-group" && peek(vhost, queue, row.type)]);
      append(messages, [!row.type.startsWith("stream") && status(vhost, queue)]);
    }
    waiting.show([
      {label: "Ready", points: lengths(row.messages_ready_details)},
      {label: "Unacknowledged", points: lengths(row.messages_unacknowledged_details)},
    ]);
    const moved = row.message_stats ?? {};
    moving.show([
      {label: "In", points: rates(moved.publish_details)},
      {label: "Delivered", points: rates(moved.deliver_get_details)},
      {label: "Acknowledged", points: rates(moved.ack_details)},
    ]);
    consumers.show(row.consumer_details ?? []);
    bindings.show(await get([...path, "bindings"], {}, signal));
  });
}

function actions(row, again) {
  const {vhost, name: queue, type, members} = row;
  const isLog = type.startsWith("stream");
  const path = ["queues", vhost, queue];

  async function del() {
    const text = "The queue and its messages are deleted. This cannot be undone.";
    if (!(await ask(`Delete ${queue}?`, text, "Delete"))) return;
    if (await attempt("The queue was deleted.", () => remove(path))) go(["queues"]);
  }

  const pauses = h("span", {class: "buttons"});
  offer(row);

  function offer({deliveries_paused: deliveries, publishes_paused: publishes, protected_from_deletion: kept}) {
    fill(pauses, [
      !isLog && button(deliveries ? "Resume deliveries" : "Pause deliveries", () => pause({deliveries: true}, deliveries)),
      !isLog && button(publishes ? "Resume publishes" : "Pause publishes", () => pause({publishes: true}, publishes)),
      may("administrator") && button(kept ? "Lift protection" : "Protect", () => protect(kept)),
    ]);
  }

  async function pause(what, paused) {
    const [verb, text] = paused ? ["resume", "It goes on."] : ["pause", "It is paused."];
    await attempt(text, () => put([...path, verb], what));
    offer(await get(path));
    again();
  }

  async function protect(kept) {
    const place = [...path, "deletion", "protection"];
    const text = kept ? "It can be deleted again." : "It is protected from deletion.";
    await attempt(text, () => (kept ? remove(place) : post(place, {})));
    offer(await get(path));
    again();
  }

  function lead() {
    const fields = [{name: "node", label: "Node", required: true}];
    form("Have another node lead it", fields, "Transfer", async ({node}) => {
      await put(["cluster", ...path, "leader"], {node});
      done("The leader was asked to hand over.");
      again();
    });
  }

  return [
    type !== "stream-group" && button("Publish", () => publishForm(vhost, "", queue, again), "primary"),
    !isLog && button("Move", () => moveForm(vhost, queue, again)),
    type !== "stream-group" && button("Copy", () => copyForm(vhost, queue, again)),
    !isLog && button("Redrive", () => redrive(vhost, queue, again)),
    may("administrator") && members?.length > 1 && button("Leader", lead),
    pauses,
    !isLog && button("Purge some", () => purgeForm(vhost, queue, again)),
    !isLog && button("Purge", () => purge(vhost, queue, again), "danger"),
    button("Delete", del, "danger"),
  ];
}
