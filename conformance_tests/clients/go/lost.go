package main

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A transaction over two queues whose answer never comes: its connection dies between tx.commit and tx.commit-ok.

// Class and method of tx.commit and tx.commit-ok.
var (
	commitMethod   = []byte{0, 90, 0, 20}
	commitOkMethod = []byte{0, 90, 0, 21}
)

const moved = 30

// A dying connection breaks as soon as it has sent a commit, or as soon as the answer has come, unseen by the client.
type dyingConn struct {
	net.Conn
	afterCommit, atAnswer *atomic.Bool
}

func (c *dyingConn) Write(data []byte) (int, error) {
	count, err := c.Conn.Write(data)
	if bytes.Contains(data, commitMethod) && c.afterCommit.Load() {
		c.Conn.Close()
	}
	return count, err
}

func (c *dyingConn) Read(data []byte) (int, error) {
	count, err := c.Conn.Read(data)
	if bytes.Contains(data[:count], commitOkMethod) && c.atAnswer.Load() {
		c.Conn.Close()
		return 0, errors.New("the answer is lost")
	}
	return count, err
}

// moveOne takes a message out of one queue and puts it into the other; false if the source is empty.
func moveOne(source, target string, afterCommit, atAnswer *atomic.Bool) (bool, error) {
	dial := func(network, address string) (net.Conn, error) {
		plain, err := amqp.DefaultDial(waitTime)(network, address)
		return &dyingConn{plain, afterCommit, atAnswer}, err
	}
	own, err := amqp.DialConfig(amqpURL, amqp.Config{Dial: dial})
	ok(err, "connect")
	defer own.Close()
	channel := must(own.Channel())
	ok(channel.Tx(), "tx.select")
	message, found, err := channel.Get(source, false)
	ok(err, "basic.get")
	if !found {
		return false, nil
	}
	copied := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: message.Body}
	ok(channel.Publish("", target, false, false, copied), "publish")
	ok(message.Ack(false), "ack")
	return true, channel.TxCommit()
}

func transactionsAreWholeThoughTheirAnswersAreLost() {
	channel := confirming()
	defer channel.Close()
	source := must(channel.QueueDeclare(name("tx.source"), true, false, false, false, amqp.Table{"x-queue-type": "quorum"})).Name
	target := must(channel.QueueDeclare(name("tx.target"), true, false, false, false, nil)).Name
	for number := 0; number < moved; number++ {
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(number))}
		equal(publish(channel, "", source, message), true, "confirmed")
	}
	var afterCommit, atAnswer, never atomic.Bool
	lost := 0
	for round := 0; round < 2*moved; round++ {
		afterCommit.Store(round%3 == 0)
		atAnswer.Store(round%3 == 1)
		if _, err := moveOne(source, target, &afterCommit, &atAnswer); err != nil {
			lost++
		}
	}
	// What the lost ones have not moved.
	for end := time.Now().Add(waitTime); ready(channel, target) < moved && time.Now().Before(end); {
		_, err := moveOne(source, target, &never, &never)
		ok(err, "tx.commit")
	}
	if lost < moved/3 {
		fail("only %d answers were lost", lost)
	}
	count := map[string]int{}
	for _, body := range getAll(channel, target) {
		count[body]++
	}
	for number := 0; number < moved; number++ {
		equal(count[strconv.Itoa(number)], 1, "times of "+strconv.Itoa(number))
	}
	equal(getAll(channel, source), []string{}, "left in the source")
	must(channel.QueueDelete(source, false, false, false))
	must(channel.QueueDelete(target, false, false, false))
}
