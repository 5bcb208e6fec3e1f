'use strict';
// Stock amqplib (promise API) against any broker; its recovery must work after a restart.

const { once } = require('node:events');
const amqplib = require('amqplib');
const { AMQP_URL, Inbox, assert, finish, name, pause, restartBroker, run, within } = require('./checks');

const body = (n) => Buffer.from(String(n));
const range = (count, from = 0) => Array.from({ length: count }, (_, n) => n + from);
const quiet = (emitter) => emitter.on('error', () => {});

let connection;

async function withChannel(work, { confirm = false } = {}) {
  const channel = quiet(await (confirm ? connection.createConfirmChannel() : connection.createChannel()));
  const result = await work(channel);
  await channel.close();
  return result;
}

const withConfirms = (work) => withChannel(work, { confirm: true });

async function temporaryQueue(channel, args) {
  return (await channel.assertQueue('', { exclusive: true, arguments: args })).queue;
}

async function publish(channel, queue, content, options) {
  channel.sendToQueue(queue, body(content), options);
  await channel.waitForConfirms();
}

async function getOne(channel, queue, options = { noAck: true }) {
  for (;;) {
    const message = await channel.get(queue, options);
    if (message) return message;
    await pause(20);
  }
}

async function getAll(channel, queue) {
  const contents = [];
  for (;;) {
    const message = await channel.get(queue, { noAck: true });
    if (!message) return contents;
    contents.push(message.content.toString());
  }
}

const ready = async (channel, queue) => (await channel.checkQueue(queue)).messageCount;

function otherUrl(change) {
  const url = new URL(AMQP_URL);
  change(url);
  return url.toString();
}

async function wrongPasswordIsRefused() {
  const url = otherUrl((other) => (other.password = 'not-the-password'));
  await assert.rejects(amqplib.connect(url), /403.*ACCESS.REFUSED/);
}

async function unknownVhostIsRefused() {
  const url = otherUrl((other) => (other.pathname = '/no-such-vhost'));
  // amqplib reports the broker's connection.close as a frame that it did not expect, without code and text.
  await assert.rejects(amqplib.connect(url), /got <ConnectionClose channel:0>/);
}

async function serverProperties() {
  const { product, version, capabilities } = connection.connection.serverProperties;
  assert.ok(product && version, 'product and version');
  for (const key of ['publisher_confirms', 'basic.nack', 'consumer_cancel_notify', 'connection.blocked']) {
    assert.equal(capabilities[key], true, key);
  }
}

async function closeReturnsWhateverIsUnderWay() {
  for (let number = 0; number < 100; number += 1) {
    const closing = await amqplib.connect(AMQP_URL, { recovery: false });
    const errors = [];
    closing.on('error', (error) => errors.push(error));
    const channel = quiet(await closing.createChannel());
    const queue = await temporaryQueue(channel);
    await channel.consume(queue, () => {}, { noAck: true });
    for (let message = 0; message < 10; message += 1) channel.sendToQueue(queue, body(message));
    await within(10000, closing.close(), `close number ${number}`);
    assert.deepEqual(errors, []);
  }
}

async function aShortHeartbeatKeepsTheConnection() {
  const idle = await amqplib.connect(otherUrl((other) => other.searchParams.set('heartbeat', '1')), { recovery: false });
  const errors = [];
  idle.on('error', (error) => errors.push(error));
  await pause(5000);
  assert.deepEqual(errors, []);
  await (await idle.createChannel()).close();
  await idle.close();
}

async function exchangeTypesRoute() {
  const kinds = [
    ['direct', 'red', {}, ['red', {}], ['blue', {}]],
    ['fanout', '', {}, ['anything', {}], null],
    ['topic', 'stock.*.#', {}, ['stock.eur.a', {}], ['bond.eur', {}]],
    ['headers', '', { 'x-match': 'any', a: 1, b: 'two' }, ['', { b: 'two' }], ['', { b: 'three' }]],
  ];
  await withConfirms(async (channel) => {
    for (const [kind, pattern, args, hit, miss] of kinds) {
      const { exchange } = await channel.assertExchange(name(kind), kind, { autoDelete: true });
      const queue = await temporaryQueue(channel);
      await channel.bindQueue(queue, exchange, pattern, args);
      channel.publish(exchange, hit[0], body('hit'), { headers: hit[1] });
      if (miss) channel.publish(exchange, miss[0], body('miss'), { headers: miss[1] });
      await channel.waitForConfirms();
      assert.deepEqual(await getAll(channel, queue), ['hit'], kind);
      await channel.unbindQueue(queue, exchange, pattern, args);
    }
  });
}

async function exchangeToExchangeAndAlternateRoute() {
  await withConfirms(async (channel) => {
    const alternate = (await channel.assertExchange(name('alternate'), 'fanout')).exchange;
    const source = (await channel.assertExchange(name('source'), 'topic', { alternateExchange: alternate })).exchange;
    const destination = (await channel.assertExchange(name('destination'), 'fanout')).exchange;
    const [queue, unrouted] = [await temporaryQueue(channel), await temporaryQueue(channel)];
    await channel.bindExchange(destination, source, 'a.#');
    await channel.bindQueue(queue, destination, '');
    await channel.bindQueue(unrouted, alternate, '');
    channel.publish(source, 'a.b', body('through two'));
    channel.publish(source, 'b.b', body('unrouted'));
    await channel.waitForConfirms();
    assert.deepEqual(await getAll(channel, queue), ['through two']);
    assert.deepEqual(await getAll(channel, unrouted), ['unrouted']);
    await channel.unbindExchange(destination, source, 'a.#');
    for (const exchange of [source, destination, alternate]) await channel.deleteExchange(exchange);
  });
}

async function expiredMessagesAreDeadLettered() {
  await withChannel(async (channel) => {
    const dead = await temporaryQueue(channel);
    const { queue } = await channel.assertQueue(name('ttl'), {
      exclusive: true,
      messageTtl: 30,
      deadLetterExchange: '',
      deadLetterRoutingKey: dead,
    });
    channel.sendToQueue(queue, body('short life'));
    const message = await getOne(channel, dead);
    assert.equal(message.content.toString(), 'short life');
    const [death] = message.properties.headers['x-death'];
    assert.deepEqual([death.reason, death.queue, death.count], ['expired', queue, 1]);
  });
}

async function purgeAndDeleteCount() {
  await withConfirms(async (channel) => {
    const { queue } = await channel.assertQueue(name('purged'), { durable: true });
    for (let n = 0; n < 3; n += 1) await publish(channel, queue, n);
    assert.equal((await channel.purgeQueue(queue)).messageCount, 3);
    await publish(channel, queue, 'x');
    assert.equal((await channel.deleteQueue(queue)).messageCount, 1);
  });
}

async function publishesAreConfirmed() {
  await withConfirms(async (channel) => {
    const { queue } = await channel.assertQueue(name('confirmed'), { durable: true });
    for (const n of range(500)) channel.sendToQueue(queue, body(n), { persistent: true });
    await channel.waitForConfirms();
    assert.equal(await ready(channel, queue), 500);
    assert.deepEqual(await getAll(channel, queue), range(500).map(String));
    await channel.deleteQueue(queue);
  });
}

async function fullQueueNacks() {
  await withConfirms(async (channel) => {
    const queue = await temporaryQueue(channel, { 'x-max-length': 1, 'x-overflow': 'reject-publish' });
    const outcome = () => new Promise((resolve) => channel.sendToQueue(queue, body('x'), {}, (error) => resolve(!error)));
    assert.equal(await outcome(), true, 'first confirm');
    assert.equal(await outcome(), false, 'second confirm');
  });
}

async function unroutableMandatoryReturns() {
  await withConfirms(async (channel) => {
    const order = [];
    channel.on('return', (message) => order.push(message));
    await new Promise((resolve) => {
      channel.publish('', name('nowhere'), body('come back'), { mandatory: true }, () => resolve(order.push('confirm')));
    });
    assert.equal(order.length, 2, 'a return, then a confirm');
    const [{ fields, content }] = order;
    assert.deepEqual([fields.replyCode, fields.replyText], [312, 'NO_ROUTE']);
    assert.equal(content.toString(), 'come back');
  });
}

async function prefetchBoundsUnacked() {
  await withConfirms(async (channel) => {
    const queue = await temporaryQueue(channel);
    for (const n of range(10)) channel.sendToQueue(queue, body(n));
    await channel.waitForConfirms();
    await channel.prefetch(3);
    const inbox = new Inbox();
    const { consumerTag } = await channel.consume(queue, inbox.put);
    const got = [];
    const receive = async (count) => {
      while (got.length < count) got.push(await inbox.take());
      assert.equal(await ready(channel, queue), 10 - count, 'ready behind the prefetch');
      assert.equal(inbox.messages.length, 0, 'deliveries beyond the prefetch');
    };
    await receive(3);
    channel.ack(got[2], true);
    await receive(6);
    channel.ack(got[3]);
    await receive(7);
    channel.ackAll();
    await receive(10);
    channel.ackAll();
    assert.deepEqual(got.map((message) => Number(message.content)), range(10));
    await channel.cancel(consumerTag);
    await channel.recover();
    assert.equal(await ready(channel, queue), 0, 'after all acks');
  });
}

// Declares a stream with so many numbered messages.
async function streamWith(count) {
  const stream = name(`stream-${count}`);
  await withConfirms(async (channel) => {
    await channel.assertQueue(stream, { durable: true, arguments: { 'x-queue-type': 'stream' } });
    for (const n of range(count)) channel.sendToQueue(stream, body(n));
    await channel.waitForConfirms();
  });
  return stream;
}

// Consumes so many messages on a separate channel, and acks the first ones. The channel is closed with the rest.
async function read(queue, count, args, acks = count) {
  return withChannel(async (channel) => {
    const inbox = new Inbox();
    const got = [];
    await channel.prefetch(10);
    await channel.consume(queue, inbox.put, { arguments: args });
    for (let n = 0; n < count; n += 1) {
      const message = await inbox.take();
      if (n < acks) channel.ack(message);
      got.push(message);
    }
    return got;
  });
}

// Offsets of messages whose bodies are their offsets.
function offsets(got) {
  const found = got.map((message) => message.properties.headers['x-stream-offset']);
  assert.deepEqual(got.map((message) => Number(message.content)), found);
  return found;
}

async function streamIsReadFromAnOffset() {
  const stream = await streamWith(50);
  const hourAgo = { '!': 'timestamp', value: Math.floor(Date.now() / 1000) - 3600 };
  for (const [start, first] of [[20, 20], ['first', 0], [20, 20], [hourAgo, 0], ['1h', 0]]) {
    const got = await read(stream, 50 - first, { 'x-stream-offset': start });
    assert.deepEqual(offsets(got), range(50 - first, first));
  }
  await withChannel((channel) => channel.deleteQueue(stream));
}

async function groupGoesOnWhereItAcked() {
  const [stream, group] = [await streamWith(50), name('group')];
  await withChannel(async (channel) => {
    const args = { 'x-queue-type': 'stream-group', 'x-stream': stream, 'x-stream-offset': 'first' };
    await channel.assertQueue(group, { durable: true, arguments: args });
    let got = await read(group, 31, {}, 30);
    assert.deepEqual(offsets(got), range(31));
    for (const message of got) assert.equal(message.properties.headers['x-stream'], stream);
    got = await read(group, 20);
    assert.deepEqual(offsets(got), range(20, 30));
    assert.equal(got[0].fields.redelivered, true, 'what the first member held and had not acked');
    assert.equal(await channel.get(group), false, 'one more than was published');
    assert.equal(await ready(channel, group), 0);
    await channel.deleteQueue(group);
    await channel.deleteQueue(stream);
  });
}

async function requeuedComesBackRedelivered() {
  await withConfirms(async (channel) => {
    const queue = await temporaryQueue(channel);
    await publish(channel, queue, 'first');
    await publish(channel, queue, 'second');
    const first = await getOne(channel, queue, {});
    assert.deepEqual([String(first.content), first.fields.redelivered], ['first', false]);
    channel.nack(first, false, true);
    const again = await getOne(channel, queue, {});
    assert.deepEqual([String(again.content), again.fields.redelivered], ['first', true]);
    channel.reject(again, false);
    assert.deepEqual(await getAll(channel, queue), ['second']);
  });
}

async function consumerIsToldOfTheQueuesEnd() {
  await withChannel(async (channel) => {
    const { queue } = await channel.assertQueue(name('doomed'), { durable: false });
    const inbox = new Inbox();
    await channel.consume(queue, inbox.put);
    await withChannel((other) => other.deleteQueue(queue));
    // amqplib hands a null to the consumer when the broker's basic.cancel comes.
    assert.equal(await inbox.take(), null);
  });
}

async function propertiesComeBackAsSent() {
  await withChannel(async (channel) => {
    const queue = await temporaryQueue(channel);
    const sent = {
      contentType: 'application/json',
      contentEncoding: 'utf-8',
      headers: { text: 'größe', int: -7, long: 2 ** 40, double: 1.5, yes: true, list: [1, 'two', { three: 3 }], none: null },
      deliveryMode: 2,
      priority: 7,
      correlationId: 'c-1',
      replyTo: 'r-1',
      expiration: '60000',
      messageId: 'm-1',
      timestamp: 1700000000,
      type: 't-1',
      appId: 'a-1',
    };
    channel.sendToQueue(queue, Buffer.alloc(0), sent);
    const got = await getOne(channel, queue);
    assert.equal(got.content.length, 0);
    for (const [key, value] of Object.entries(sent)) assert.deepEqual(got.properties[key], value, key);
  });
}

async function largeMessageIsWhole() {
  await withChannel(async (channel) => {
    const queue = await temporaryQueue(channel);
    const content = Buffer.alloc(2 ** 20 + 5, 'a change would show ');
    channel.sendToQueue(queue, content);
    assert.ok((await getOne(channel, queue)).content.equals(content), '1 MiB came back changed');
  });
}

// The act closes its own channel with this code and text, and the connection stays open.
async function expectClose(code, text, act) {
  const channel = await connection.createChannel();
  const closed = once(channel, 'error', { signal: AbortSignal.timeout(40000) }).catch((error) => [error]);
  await Promise.resolve(act(channel)).catch(() => {});
  const [error] = await closed;
  assert.equal(error.code, code);
  assert.ok(error.message.includes(text), `${text} not in ${error.message}`);
  await withChannel(temporaryQueue);
}

async function missingThingsGive404() {
  const missing = name('missing');
  await expectClose(404, `no queue '${missing}' in vhost '/'`, (channel) => channel.checkQueue(missing));
  await expectClose(404, `no queue '${missing}' in vhost '/'`, (channel) => channel.consume(missing, () => {}));
  await expectClose(404, `no exchange '${missing}' in vhost '/'`, async (channel) => {
    channel.publish(missing, '', body('x'));
  });
}

async function reservedNamesGive403() {
  await expectClose(403, 'contains reserved prefix', (channel) => channel.assertQueue('amq.mine'));
  await expectClose(403, 'contains reserved prefix', (channel) => channel.assertExchange('amq.mine', 'direct'));
}

async function otherConnectionsExclusiveQueueGives405() {
  const other = quiet(await amqplib.connect(AMQP_URL));
  const queue = await temporaryQueue(await other.createChannel());
  await expectClose(405, `exclusive access to locked queue '${queue}'`, (channel) => channel.consume(queue, () => {}));
  await other.close();
}

async function disagreementGives406() {
  await withChannel(async (channel) => {
    const queue = name('agreed');
    await channel.assertQueue(queue, { exclusive: true, messageTtl: 1000 });
    await expectClose(406, `inequivalent arg 'x-message-ttl' for queue '${queue}' in vhost '/': received '2000' but current is '1000'`, (own) =>
      own.assertQueue(queue, { exclusive: true, messageTtl: 2000 }),
    );
    await expectClose(406, 'unknown delivery tag 99', async (own) => own.ack({ fields: { deliveryTag: 99 } }));
  });
}

// The client's own recovery: setup() runs on every connect, the durable queue has kept the confirmed messages.
async function recoveryComesBackAfterARestart() {
  const queue = name('durable');
  let inbox;
  let channel;
  const recovering = await amqplib.connect(AMQP_URL, {
    recovery: {
      initialDelay: 200,
      maxDelay: 500,
      async setup(model) {
        inbox = new Inbox();
        channel = quiet(await model.createConfirmChannel());
        await channel.assertQueue(queue, { durable: true });
        await channel.prefetch(1);
        await channel.consume(queue, inbox.put);
      },
    },
  });
  quiet(recovering);
  for (const n of range(50)) channel.sendToQueue(queue, body(n), { persistent: true });
  await channel.waitForConfirms();
  const held = await inbox.take();
  assert.deepEqual([Number(held.content), held.fields.redelivered], [0, false]);
  // Not once(): it rejects when the lost connection emits its error first.
  const again = new Promise((resolve) => recovering.once('connect', resolve));
  await restartBroker();
  await within(15000, again, 'the connection came back');
  for (const n of range(50)) {
    const message = await within(5000, inbox.take(), `message ${n} after the restart`);
    assert.equal(Number(message.content), n);
    if (n === 0) assert.equal(message.fields.redelivered, true);
    channel.ack(message);
  }
  await publish(channel, queue, 'new', { persistent: true });
  const message = await inbox.take();
  assert.equal(message.content.toString(), 'new');
  channel.ack(message);
  await channel.deleteQueue(queue);
  await recovering.close();
}

async function main() {
  connection = quiet(await amqplib.connect(AMQP_URL));
  await run('server-properties', serverProperties);
  await run('wrong-password-is-refused', wrongPasswordIsRefused);
  await run('unknown-vhost-is-refused', unknownVhostIsRefused);
  await run('close-returns-whatever-is-under-way', closeReturnsWhateverIsUnderWay);
  await run('a-short-heartbeat-keeps-the-connection', aShortHeartbeatKeepsTheConnection);
  await run('exchange-types-route', exchangeTypesRoute);
  await run('exchange-to-exchange-and-alternate-route', exchangeToExchangeAndAlternateRoute);
  await run('expired-messages-are-dead-lettered', expiredMessagesAreDeadLettered);
  await run('purge-and-delete-count', purgeAndDeleteCount);
  await run('publishes-are-confirmed', publishesAreConfirmed);
  await run('full-queue-nacks', fullQueueNacks);
  await run('unroutable-mandatory-returns', unroutableMandatoryReturns);
  await run('prefetch-bounds-unacked', prefetchBoundsUnacked);
  await run('requeued-comes-back-redelivered', requeuedComesBackRedelivered);
  await run('consumer-is-told-of-the-queues-end', consumerIsToldOfTheQueuesEnd);
  await run('properties-come-back-as-sent', propertiesComeBackAsSent);
  await run('large-message-is-whole', largeMessageIsWhole);
  await run('missing-things-give-404', missingThingsGive404);
  await run('reserved-names-give-403', reservedNamesGive403);
  await run('other-connections-exclusive-queue-gives-405', otherConnectionsExclusiveQueueGives405);
  await run('disagreement-gives-406', disagreementGives406);
  await run('stream-is-read-from-an-offset', streamIsReadFromAnOffset);
  await run('group-goes-on-where-it-acked', groupGoesOnWhereItAcked, { needsGroups: true });
  await connection.close();
  await run('recovery-comes-back-after-a-restart', recoveryComesBackAfterARestart, { needsRestart: true });
  process.exit(finish());
}

main().catch((error) => {
  console.log(`FAIL connect ${error}`);
  process.exit(1);
});
