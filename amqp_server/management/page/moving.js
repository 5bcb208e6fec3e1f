// Messages of a queue moved to another one, copied, redriven and purged.

import {get, post, remove} from "./api.js";
import {ask, form} from "./dialog.js";
import {count} from "./format.js";
import {attempt, done} from "./notice.js";

/** Maximum number of messages that one request moves. */
const MOVED_AT_ONCE = 10_000;

const TO = {name: "destination", label: "To the queue", required: true, help: "Of the same virtual host."};
const CONDITIONS = [
  {name: "header", label: "Only with the header", placeholder: "name=value"},
  {name: "routing_key", label: "Only if the routing key matches", help: "A regular expression."},
  {name: "contains", label: "Only if the payload contains", help: "All that is filled in must hold; all others stay as they are."},
];

/** Return the conditions that are filled in, null if none is. */
function conditions(values) {
  const given = CONDITIONS.map(({name}) => [name, values[name]]).filter(([, value]) => value);
  return given.length ? Object.fromEntries(given) : null;
}

/** Ask for one part of the queue after the other; return the sums of the numbers in the answers. */
async function inParts(path, what, body, enough = () => false) {
  let left = (await get(path, {})).messages_ready;
  let after = "";
  const sums = {};
  while (left > 0 && after !== null && !enough(sums)) {
    const told = await post([...path, what], {...body(sums), after});
    for (const [name, value] of Object.entries(told)) {
      if (name !== "next") sums[name] = (sums[name] ?? 0) + value;
    }
    if (told.refused) break;
    left -= told.looked_at;
    after = told.next;
  }
  return sums;
}

function refusedAfter(number, verb) {
  return new Error(`${count(number)} messages were ${verb}; the other queue refuses the next one.`);
}

export function moveForm(vhost, queue, again) {
  const path = ["queues", vhost, queue];
  const fields = [
    TO,
    {name: "count", label: "Messages", type: "number", min: 1, help: "Empty: all that are ready. Without a condition, from the head of the queue."},
    ...CONDITIONS,
  ];
  form(`Move messages of ${queue}`, fields, "Move", async (values) => {
    const {destination, count: wanted} = values;
    const given = conditions(values);
    let moved = 0;
    if (given) {
      const body = (sums) => ({destination, ...given, ...(wanted && {count: Math.min(MOVED_AT_ONCE, wanted - (sums.moved ?? 0))})});
      const sums = await inParts(path, "move", body, (told) => told.moved >= wanted);
      moved = sums.moved ?? 0;
      if (sums.refused) throw refusedAfter(moved, "moved");
    } else {
      const most = wanted ?? (await get(path, {})).messages_ready;
      while (moved < most) {
        const told = await post([...path, "move"], {destination, count: Math.min(MOVED_AT_ONCE, most - moved)});
        moved += told.moved;
        if (told.refused) throw refusedAfter(moved, "moved");
        if (!told.moved) break;
      }
    }
    done(`${count(moved)} messages were moved.`);
    again();
  });
}

export function copyForm(vhost, queue, again) {
  const fields = [TO, {name: "limit", label: "Messages", type: "number", min: 1, help: "Empty: all."}, ...CONDITIONS];
  form(`Copy messages of ${queue}`, fields, "Copy", async (values) => {
    const {destination, limit} = values;
    const body = (sums) => ({destination, ...conditions(values), ...(limit && {limit: limit - (sums.copied ?? 0)})});
    const sums = await inParts(["queues", vhost, queue], "copy", body, (told) => told.copied >= limit);
    if (sums.refused) throw refusedAfter(sums.copied, "copied");
    done(`${count(sums.copied ?? 0)} messages were copied.`);
    again();
  });
}

/** Purge only the messages that fulfil conditions. */
export function purgeForm(vhost, queue, again) {
  form(`Purge some messages of ${queue}`, CONDITIONS, "Purge", async (values) => {
    const given = conditions(values);
    if (!given) throw new Error("Fill in a condition, or purge the whole queue.");
    const sums = await inParts(["queues", vhost, queue], "purge", () => given);
    done(`${count(sums.purged ?? 0)} messages were purged.`);
    again();
  });
}

export async function purge(vhost, queue, again) {
  const text = "All its messages that are ready are deleted. This cannot be undone.";
  if (!(await ask(`Purge ${queue}?`, text, "Purge"))) return;
  await attempt("The queue was purged.", () => remove(["queues", vhost, queue, "contents"]));
  again();
}

export async function redrive(vhost, queue, again) {
  const text =
    "Dead letters go back to the queues in which they died first. Other messages stay, and so do those whose queue is gone.";
  if (!(await ask(`Redrive messages of ${queue}?`, text, "Redrive"))) return;
  await attempt(null, async () => {
    const told = await post(["queues", vhost, queue, "redrive"], {});
    done(`${count(told.moved)} messages went back, ${count(told.kept)} stay.`);
  });
  again();
}
