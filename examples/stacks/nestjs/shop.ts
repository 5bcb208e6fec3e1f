/**
 * NestJS on a quorum queue, acked by the handler when the work is done.
 *
 * npm install && npm run build
 * node dist/shop.js
 * node dist/shop.js order-7
 */
import 'reflect-metadata';
import { Controller, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import {
  ClientProxyFactory, Ctx, EventPattern, MicroserviceOptions, Payload, RmqContext, RmqOptions, Transport,
} from '@nestjs/microservices';
import { lastValueFrom } from 'rxjs';

const rmq: RmqOptions = {
  transport: Transport.RMQ,
  options: {
    // In a cluster: the addresses of all nodes.
    urls: [process.env.AMQP_URL ?? 'amqp://guest:guest@127.0.0.1:5672'],
    queue: 'orders',
    queueOptions: { durable: true, arguments: { 'x-queue-type': 'quorum' } },
    persistent: true,
    prefetchCount: 100,
    // Otherwise a message counts as done when it is sent, and is lost with the worker.
    noAck: false,
  },
};

@Controller()
class Orders {
  @EventPattern('order')
  bill(@Payload() order: string, @Ctx() context: RmqContext): void {
    console.log(`billed ${order}`);
    context.getChannelRef().ack(context.getMessage());
  }
}

@Module({ controllers: [Orders] })
class Shop {}

async function work(): Promise<void> {
  const app = await NestFactory.createMicroservice<MicroserviceOptions>(Shop, rmq);
  await app.listen();
}

/** Publish, and return when the broker has the message on disk. */
async function order(name: string): Promise<void> {
  // The answers' queue of the client never acks: see the docs of NestJS.
  const client = ClientProxyFactory.create({ ...rmq, options: { ...rmq.options, noAck: true } });
  await lastValueFrom(client.emit('order', name), { defaultValue: undefined });
  await client.close();
}

void (process.argv[2] === undefined ? work() : order(process.argv[2]));
