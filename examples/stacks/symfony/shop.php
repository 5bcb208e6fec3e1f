<?php

/*
 * Symfony Messenger on a quorum queue, acked when the handler has ended.
 *
 * composer install
 * php shop.php
 * php shop.php order-7
 *
 * In a whole Symfony application the options below belong to the transport in config/packages/messenger.yaml, and
 * `bin/console messenger:consume` is the worker.
 */

declare(strict_types=1);

use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpTransportFactory;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
use Symfony\Component\Messenger\Worker;

// Debian's packages (php-symfony-amqp-messenger) have loaders of their own.
$debian = '/usr/share/php/Symfony/Component';
foreach (is_file(__DIR__.'/vendor/autoload.php')
    ? [__DIR__.'/vendor/autoload.php']
    : ["$debian/Messenger/Bridge/Amqp/autoload.php", "$debian/EventDispatcher/autoload.php"] as $loader) {
    require_once $loader;
}

final class Order
{
    public function __construct(public readonly string $name)
    {
    }
}

$url = getenv('AMQP_URL') ?: 'amqp://guest:guest@127.0.0.1:5672/%2f';
$transport = (new AmqpTransportFactory())->createTransport($url, [
    // Otherwise the transport takes the end of the address for the name of the exchange.
    'exchange' => ['name' => 'orders', 'type' => 'fanout'],
    'queues' => ['orders' => ['arguments' => ['x-queue-type' => 'quorum']]],
    // A send returns when the broker has the message on disk, or throws after this time, s.
    'confirm_timeout' => 10,
    'prefetch_count' => 100,
], new PhpSerializer());

if (isset($argv[1])) {
    $transport->send(new Envelope(new Order($argv[1])));
    exit(0);
}

$bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([
    Order::class => [function (Order $order): void {
        echo "billed {$order->name}\n";
    }],
]))]);
(new Worker(['orders' => $transport], $bus, new EventDispatcher()))->run(['sleep' => 100_000]);
