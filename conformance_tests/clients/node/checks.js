'use strict';
// The framework of the program: named checks, one line each, and the broker's restart.

const { execFile } = require('node:child_process');
const { randomBytes } = require('node:crypto');
const assert = require('node:assert/strict');

const AMQP_URL = process.env.AMQP_URL || 'amqp://guest:guest@127.0.0.1:5672/%2F';
const RESTART_CMD = process.env.RESTART_CMD || '';
const CONSUMER_GROUPS = process.env.CONSUMER_GROUPS || '';
const CHECK_MS = 40000;
const RESTART_MS = 130000;

const prefix = `clients.amqplib.${randomBytes(4).toString('hex')}`;
const name = (noun) => `${prefix}.${noun}`;

let passed = 0;
let failed = 0;

function within(ms, promise, what) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`timed out: ${what}`)), ms);
  });
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

async function run(title, check, { needsRestart = false, needsGroups = false } = {}) {
  if (needsRestart && !RESTART_CMD) {
    console.log(`skip ${title} RESTART_CMD is not set`);
    return;
  }
  if (needsGroups && !CONSUMER_GROUPS) {
    console.log(`skip ${title} CONSUMER_GROUPS is not set`);
    return;
  }
  try {
    await within(needsRestart ? RESTART_MS : CHECK_MS, check(), 'the whole check');
    passed += 1;
    console.log(`ok ${title}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${title} ${String(error).replace(/\s+/g, ' ').slice(0, 400)}`);
  }
}

function finish() {
  console.log(`${passed} passed, ${failed} failed`);
  return failed || !passed ? 1 : 0;
}

function restartBroker() {
  return new Promise((resolve, reject) => {
    execFile('/bin/sh', ['-c', RESTART_CMD], { timeout: RESTART_MS }, (error) => (error ? reject(error) : resolve()));
  });
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// A queue from which messages can be awaited one by one.
class Inbox {
  constructor() {
    this.messages = [];
    this.waiting = [];
    this.put = (message) => {
      const taker = this.waiting.shift();
      if (taker) taker(message);
      else this.messages.push(message);
    };
  }

  take() {
    if (this.messages.length) return Promise.resolve(this.messages.shift());
    return new Promise((resolve) => this.waiting.push(resolve));
  }
}

module.exports = { AMQP_URL, Inbox, assert, finish, name, pause, restartBroker, run, within };
