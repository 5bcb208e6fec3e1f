// What became of a message of a queue, by its message-id.

import {get} from "./api.js";
import {fill, h} from "./dom.js";
import {input, labelled} from "./dialog.js";
import {count, time} from "./format.js";
import {section} from "./list.js";
import {refused} from "./notice.js";
import {Table} from "./table.js";

const COLUMNS = [
  {label: "State", text: (row) => row.state},
  {label: "Reason", text: (row) => row.reason},
  {label: "Came", text: (row) => (row.queued_ms ? time(row.queued_ms) : "")},
  {label: "Since", text: (row) => time(row.changed_ms)},
  {label: "Deliveries", number: true, text: (row) => (row.deliveries === undefined ? "" : count(row.deliveries))},
  {label: "Consumer", text: (row) => row.consumer && (row.consumer.consumer_tag ?? "basic.get")},
  {label: "Node", text: (row) => row.consumer?.node},
  {label: "To exchange", text: (row) => row.dead_letter_exchange === "" ? "(default)" : row.dead_letter_exchange},
];

export function status(vhost, queue) {
  const field = {name: "message_id", label: "message-id", required: true, help: "as its publisher has set it"};
  const id = input(field);
  const found = h("div", {"aria-live": "polite"});
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        look();
      },
    },
    labelled(field, id),
    h("button", {}, "Look it up"),
  );

  async function look() {
    fill(found, h("p", {}, "Looking …"));
    try {
      const told = await get(["messages", vhost, id.value], {queue});
      const [{messages, not_taken: refusedOnes}] = told.queues;
      const rows = refusedOnes ? [...messages, {...refusedOnes, changed_ms: refusedOnes.last_ms}] : messages;
      const since = told.recorded_since_ms ? `since ${time(told.recorded_since_ms)}` : "since its declaration";
      const list = new Table(COLUMNS, (row) => JSON.stringify([row.position, row.state]), {
        caption: "What became of it",
        empty: `The queue does not know it. It knows every message that came ${since}.`,
      });
      list.show(rows);
      fill(found, list.element);
    } catch (error) {
      fill(found);
      refused(error);
    }
  }

  return section("What became of a message", form, found);
}
