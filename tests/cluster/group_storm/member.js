"use strict";

// A member that uses amqplib, again and again: with frames of 4 KiB, which the library asks for,
// and several channels.

const amqp = require(require.resolve("amqplib", { paths: [process.env.STORM_MODULES] }));
const fs = require("fs");

const { STORM_GROUP: GROUP, STORM_NAME: NAME, STORM_HEARTBEAT: HEARTBEAT, STORM_END: END } = process.env;
const urls = () => fs.readFileSync(process.env.STORM_URLS, "utf8").trim().split("\n");
const record = fs.openSync(process.env.STORM_RECORD, "a");
let seed = [...(process.env.STORM_SEED || "0")].reduce((sum, each) => (sum * 31 + each.charCodeAt(0)) >>> 0, 7);
let sessions = 0;

const random = () => {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return seed / 4294967296;
};
const choose = (options) => options[Math.floor(random() * options.length)];
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const ends = () => fs.existsSync(END);

class Member {
  constructor(url) {
    this.name = `${NAME}.${++sessions}`;
    this.url = url;
    this.held = [];
    this.deliveries = 0;
    this.lost = this.joined = this.ended = false;
  }

  tell(...words) {
    fs.writeSync(record, `${this.name} ${words.join(" ")}\n`);
  }

  end(word) {
    if (this.joined && !this.ended) {
      this.ended = true;
      this.tell(word);
    }
  }

  async join(connection) {
    this.channel = await connection.createChannel();
    this.channel.on("error", () => { this.lost = true; });
    await this.channel.prefetch(choose([1, 10, 100]), random() < 0.3);
    this.joined = true;
    this.tell("join", new URL(this.url).port);
    const { consumerTag } = await this.channel.consume(GROUP, (message) => this.take(message));
    this.tag = consumerTag;
  }

  take(message) {
    if (message === null) {
      this.lost = true;
      return;
    }
    if (this.ended) return;
    const { headers } = message.properties;
    const told = [`${headers["x-stream"]}@${headers.epoch}`, headers["x-stream-offset"]];
    this.tell("d", ...told, message.fields.redelivered ? "again" : "new", headers["x-delivery-count"] || 0);
    this.deliveries++;
    this.held.push([message, told]);
  }

  step() {
    while (this.held.length && random() < 0.9) {
      const [[message, told]] = this.held.splice(random() < 0.3 ? Math.floor(random() * this.held.length) : 0, 1);
      if (random() < 0.04) {
        this.tell("r", ...told);
        this.channel.nack(message, false, true);
      } else {
        this.tell("a", ...told);
        this.channel.ack(message);
      }
    }
  }

  async leave() {
    await this.channel.cancel(this.tag);
    for (const [message, told] of this.held.splice(0)) {
      this.tell("a", ...told);
      this.channel.ack(message);
    }
    this.tell("q");
    await this.channel.checkQueue(GROUP);
    this.tell("c");
    this.tell("closing");
  }
}

async function visit() {
  const url = choose(urls());
  const connection = await amqp.connect(`${url}?heartbeat=${HEARTBEAT}`, { timeout: 20000 });
  const members = [];
  let closed = false;
  connection.on("error", () => { closed = true; });
  connection.on("close", () => { closed = true; });
  try {
    for (let number = choose([1, 2, 3]); number > 0; number--) {
      const member = new Member(url);
      members.push(member);
      await member.join(connection);
    }
    const messages = choose([5, 50, 500]);
    const until = Date.now() + choose([1000, 3000, 10000]);
    const count = () => members.reduce((sum, each) => sum + each.deliveries, 0);
    while (!ends() && count() < messages && Date.now() < until) {
      if (closed || members.some((each) => each.lost)) return;
      members.forEach((each) => each.step());
      await pause(10);
    }
    for (const member of members) await member.leave();
    await connection.close();
    members.forEach((each) => each.end("leave"));
  } finally {
    members.forEach((each) => each.end("gone"));
    if (!closed) await connection.close().catch(() => {});
  }
}

(async () => {
  process.on("unhandledRejection", (error) => console.error(NAME, "unhandled", error.message));
  while (!ends()) {
    const limit = pause(60000).then(() => { throw new Error("a visit of more than a minute"); });
    limit.catch(() => {});
    try {
      await Promise.race([visit(), limit]);
    } catch (error) {
      console.error(NAME, error.message);
      await pause(100);
    }
  }
  process.exit(0);
})();
