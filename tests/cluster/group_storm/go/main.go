// A member that uses amqp091-go, again and again.
package main

import (
	"fmt"
	"hash/fnv"
	"math/rand"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type message struct {
	tag       uint64
	partition string
	offset    int64
}

var (
	group    = os.Getenv("STORM_GROUP")
	name     = os.Getenv("STORM_NAME")
	chance   *rand.Rand
	record   *os.File
	sessions int
)

func ends() bool {
	_, err := os.Stat(os.Getenv("STORM_END"))
	return err == nil
}

func tell(who string, words ...any) {
	line := who
	for _, each := range words {
		line += fmt.Sprint(" ", each)
	}
	record.WriteString(line + "\n")
}

func choose(options ...int) int { return options[chance.Intn(len(options))] }

func visit() error {
	sessions++
	who := fmt.Sprintf("%s.%d", name, sessions)
	text, err := os.ReadFile(os.Getenv("STORM_URLS"))
	if err != nil {
		return err
	}
	urls := strings.Fields(string(text))
	address := urls[chance.Intn(len(urls))]
	parsed, err := url.Parse(address)
	if err != nil {
		return err
	}
	seconds, _ := strconv.Atoi(os.Getenv("STORM_HEARTBEAT"))
	connection, err := amqp.DialConfig(address, amqp.Config{
		Heartbeat: time.Duration(seconds) * time.Second,
		Dial:      func(network, to string) (net.Conn, error) { return net.DialTimeout(network, to, 20*time.Second) },
	})
	if err != nil {
		return err
	}
	joined, ended := false, false
	end := func(word string) {
		if joined && !ended {
			ended = true
			tell(who, word)
		}
	}
	defer connection.Close()
	defer end("gone")
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(choose(1, 10, 100), 0, false); err != nil {
		return err
	}
	cancelled := channel.NotifyCancel(make(chan string, 4))
	joined = true
	tell(who, "join", parsed.Port())
	deliveries, err := channel.Consume(group, "m", false, false, false, false, nil)
	if err != nil {
		return err
	}
	held := []message{}
	take := func(each amqp.Delivery) {
		partition := fmt.Sprintf("%v@%v", each.Headers["x-stream"], each.Headers["epoch"])
		offset, _ := each.Headers["x-stream-offset"].(int64)
		count, _ := each.Headers["x-delivery-count"].(int64)
		flag := "new"
		if each.Redelivered {
			flag = "again"
		}
		tell(who, "d", partition, offset, flag, count)
		held = append(held, message{each.DeliveryTag, partition, offset})
	}
	settle := func() error {
		for len(held) > 0 && chance.Float64() < 0.9 {
			each := held[0]
			held = held[1:]
			if chance.Float64() < 0.04 {
				tell(who, "r", each.partition, each.offset)
				if err := channel.Nack(each.tag, false, true); err != nil {
					return err
				}
				continue
			}
			tell(who, "a", each.partition, each.offset)
			if err := channel.Ack(each.tag, false); err != nil {
				return err
			}
		}
		return nil
	}
	most, until := choose(5, 50, 500), time.After(time.Duration(choose(1, 3, 10))*time.Second)
	for count, going := 0, true; going && count < most && !ends(); {
		select {
		case each, ok := <-deliveries:
			if !ok {
				return fmt.Errorf("the deliveries ended")
			}
			take(each)
			count++
		case <-cancelled:
			return fmt.Errorf("cancelled")
		case <-time.After(20 * time.Millisecond):
		case <-until:
			going = false
		}
		if err := settle(); err != nil {
			return err
		}
	}
	if err := channel.Cancel("m", false); err != nil {
		return err
	}
	// The library closes the channel of deliveries when it has handed out all.
	for each := range deliveries {
		take(each)
	}
	for _, each := range held {
		tell(who, "a", each.partition, each.offset)
		if err := channel.Ack(each.tag, false); err != nil {
			return err
		}
	}
	tell(who, "q")
	if _, err := channel.QueueDeclarePassive(group, true, false, false, false, nil); err != nil {
		return err
	}
	tell(who, "c")
	tell(who, "closing")
	if err := connection.Close(); err != nil {
		return err
	}
	end("leave")
	return nil
}

func main() {
	hash := fnv.New64()
	hash.Write([]byte(os.Getenv("STORM_SEED")))
	chance = rand.New(rand.NewSource(int64(hash.Sum64())))
	var err error
	if record, err = os.OpenFile(os.Getenv("STORM_RECORD"), os.O_WRONLY|os.O_APPEND, 0); err != nil {
		panic(err)
	}
	for !ends() {
		if err := visit(); err != nil {
			fmt.Fprintln(os.Stderr, name, err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}
