// One consumer group: the consumer of each partition, and the lag.

import {get, post} from "../api.js";
import {append, button, h, name} from "../dom.js";
import {form} from "../dialog.js";
import {Facts} from "../facts.js";
import {count, duration} from "../format.js";
import {section} from "../list.js";
import {done} from "../notice.js";
import {poll} from "../poll.js";
import {href} from "../route.js";
import {Table} from "../table.js";

const FACTS = [
  ["Virtual host", (row) => row.vhost],
  ["Reads", (row) => row.stream],
  ["State", (row) => row.state],
  ["Members", (row) => count(row.members)],
  ["Generation", (row) => count(row.generation)],
  ["Lag", (row) => count(row.messages)],
  ["Unacknowledged", (row) => count(row.messages_unacknowledged)],
  ["Oldest unread", (row) => (row.oldest_unread_ms === null ? undefined : duration(row.oldest_unread_ms))],
];

const PARTITIONS = [
  {label: "Partition", number: true, text: (row) => row.partition},
  {label: "Stream", text: (row) => row.stream, href: (row) => href(["queue", row.vhost, row.stream])},
  {label: "Committed", number: true, text: (row) => count(row.committed_offset)},
  {label: "Next", number: true, text: (row) => count(row.next_offset)},
  {label: "End", number: true, text: (row) => count(row.end_offset)},
  {label: "Lag", number: true, text: (row) => count(row.lag)},
  {label: "Unacked", number: true, text: (row) => count(row.messages_unacknowledged)},
  {label: "Oldest unread", number: true, text: (row) => (row.oldest_unread_ms === null ? "–" : duration(row.oldest_unread_ms))},
  {label: "Member", text: (row) => row.member ?? ""},
  {label: "Connection", text: (row) => row.connection ?? "", href: (row) => row.connection && href(["connection", row.connection])},
];

export async function show(root, {parts: [vhost, group], signal}) {
  const path = ["groups", vhost, group];
  const facts = new Facts(FACTS);
  const partitions = new Table(PARTITIONS, (row) => row.stream, {caption: "Partitions"});

  function reset() {
    const fields = [
      {name: "to", label: "To", required: true, value: "first", help: "first, last, next, an offset, a time, or an age such as -1h"},
      {name: "partition", label: "Partition", type: "number", min: 0, help: "Empty: all of them."},
      {name: "force", label: "even if there are members: what they hold comes again", type: "checkbox"},
    ];
    form(`Reset ${group}`, fields, "Reset", async (values) => {
      const moved = await post([...path, "reset"], values);
      done(moved.map((each) => `${each.stream}: ${each.from} to ${each.to}`).join(", "));
      again();
    });
  }

  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Group ", name(group)), button("Reset", reset, "danger")),
    facts.element,
    section("Partitions", partitions.element),
  ]);
  const again = poll(signal, async () => {
    const row = await get(path, {}, signal);
    facts.show(row);
    partitions.show(row.partition_details.map((each) => ({...each, vhost})));
  });
}
