// Watermill on a quorum queue, acked when the handler has ended.
//
//	go build
//	./shop
//	./shop order-7
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

const orders = "orders"

func settings() amqp.Config {
	url := os.Getenv("AMQP_URL")
	if url == "" {
		url = "amqp://guest:guest@127.0.0.1:5672/"
	}
	config := amqp.NewDurableQueueConfig(url)
	config.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	// Publish returns when the broker has the message on disk.
	config.Publish.ConfirmDelivery = true
	config.Consume.Qos.PrefetchCount = 100
	return config
}

func work() error {
	subscriber, err := amqp.NewSubscriber(settings(), watermill.NopLogger{})
	if err != nil {
		return err
	}
	messages, err := subscriber.Subscribe(context.Background(), orders)
	if err != nil {
		return err
	}
	for each := range messages {
		fmt.Printf("billed %s\n", each.Payload)
		each.Ack()
	}
	return nil
}

func order(name string) error {
	publisher, err := amqp.NewPublisher(settings(), watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	return publisher.Publish(orders, message.NewMessage(watermill.NewUUID(), []byte(name)))
}

func main() {
	var err error
	if len(os.Args) > 1 {
		err = order(os.Args[1])
	} else {
		err = work()
	}
	if err != nil {
		log.Fatal(err)
	}
}
