// Streams, and the consumer groups that read them, with their lag.

import {get} from "../api.js";
import {append, h} from "../dom.js";
import {bytes, count, duration, time} from "../format.js";
import {section} from "../list.js";
import {poll} from "../poll.js";
import {href} from "../route.js";
import {PagedTable, Table} from "../table.js";
import {ofVhost} from "../vhost.js";

const PAGE_SIZE = 100;
const STREAMS_MAX = 500;

const STREAMS = [
  {label: "Stream", text: (row) => row.name, href: (row) => href(["queue", row.vhost, row.name])},
  {label: "Virtual host", text: (row) => row.vhost},
  {label: "Offsets", number: true, text: (row) => (row.next_offset === undefined ? "–" : `${count(row.first_offset)} to ${count(row.next_offset)}`)},
  {label: "Messages", number: true, text: (row) => count(row.messages)},
  {label: "Size", number: true, text: (row) => bytes(row.message_bytes)},
  {label: "Segments", number: true, text: (row) => count(row.segments)},
  {label: "Oldest", text: (row) => time(row.oldest_timestamp)},
  {label: "Consumers", number: true, text: (row) => count(row.consumers)},
  {label: "Leader", text: (row) => row.leader || row.node || ""},
];

const GROUPS = [
  {label: "Group", sort: "name", text: (row) => row.name, href: (row) => href(["group", row.vhost, row.name])},
  {label: "Virtual host", sort: "vhost", text: (row) => row.vhost},
  {label: "Reads", sort: "stream", text: (row) => row.stream},
  {label: "State", sort: "state", text: (row) => row.state},
  {label: "Members", sort: "members", number: true, text: (row) => count(row.members)},
  {label: "Partitions", sort: "partitions", number: true, text: (row) => count(row.partitions)},
  {label: "Lag", sort: "messages", number: true, text: (row) => count(row.messages)},
  {label: "Unacked", sort: "messages_unacknowledged", number: true, text: (row) => count(row.messages_unacknowledged)},
  {label: "Oldest unread", number: true, text: (row) => (row.oldest_unread_ms === null ? "–" : duration(row.oldest_unread_ms))},
];

/** Sorted by type, streams come before all other queues except groups. */
async function streams(signal) {
  const found = [];
  for (let page = 1; found.length < STREAMS_MAX; page += 1) {
    const query = {page, page_size: PAGE_SIZE, sort: "type", sort_reverse: true};
    const told = await get(ofVhost("queues"), query, signal);
    const kept = told.items.filter((row) => row.type === "stream");
    found.push(...kept);
    const last = told.items[told.items.length - 1];
    if (page >= told.page_count || !last || !last.type.startsWith("stream")) break;
  }
  return found;
}

export async function show(root, {query, signal}) {
  const listed = new Table(STREAMS, (row) => JSON.stringify([row.vhost, row.name]), {
    caption: "Streams",
    empty: "There is no stream.",
  });
  const groups = new PagedTable(GROUPS, (row) => JSON.stringify([row.vhost, row.name]), {
    caption: "Consumer groups",
    empty: "There is no consumer group.",
    filtered: true,
    query,
    load: (asked) => get(ofVhost("groups"), asked, signal),
    refresh: () => again(),
  });
  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Streams")),
    section("Consumer groups", groups.element),
    section("Streams", listed.element),
  ]);
  const again = poll(signal, async () => {
    await groups.showPage();
    listed.show(await streams(signal));
  });
}
