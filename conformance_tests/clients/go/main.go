// Stock amqp091-go against any broker; after a restart it reconnects by hand and by the client's own recovery.
// With the argument `management`, rabbit-hole against its management API.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var connection *amqp.Connection

func main() {
	time.AfterFunc(programTime, func() {
		fmt.Println("FAIL program timed out")
		os.Exit(1)
	})
	var err error
	if connection, err = amqp.Dial(amqpURL); err != nil {
		fmt.Println("FAIL connect", err)
		os.Exit(1)
	}
	checks := clientChecks()
	if len(os.Args) > 1 && os.Args[1] == "management" {
		checks = managementChecks()
	}
	results := &tally{}
	for _, one := range checks {
		results.run(one)
	}
	os.Exit(results.finish())
}

func clientChecks() []check {
	return []check{
		{"server-properties", serverProperties, false, false},
		{"wrong-password-is-refused", wrongPasswordIsRefused, false, false},
		{"unknown-vhost-is-refused", unknownVhostIsRefused, false, false},
		{"close-returns-whatever-is-under-way", closeReturnsWhateverIsUnderWay, false, false},
		{"a-short-heartbeat-keeps-the-connection", aShortHeartbeatKeepsTheConnection, false, false},
		{"exchange-types-route", exchangeTypesRoute, false, false},
		{"exchange-to-exchange-routes", exchangeToExchangeRoutes, false, false},
		{"expired-messages-are-dead-lettered", expiredMessagesAreDeadLettered, false, false},
		{"purge-and-delete-count", purgeAndDeleteCount, false, false},
		{"publishes-are-confirmed", publishesAreConfirmed, false, false},
		{"full-queue-nacks", fullQueueNacks, false, false},
		{"unroutable-mandatory-returns", unroutableMandatoryReturns, false, false},
		{"prefetch-bounds-unacked", prefetchBoundsUnacked, false, false},
		{"requeued-comes-back-redelivered", requeuedComesBackRedelivered, false, false},
		{"consumer-is-told-of-the-queues-end", consumerIsToldOfTheQueuesEnd, false, false},
		{"properties-come-back-as-sent", propertiesComeBackAsSent, false, false},
		{"large-message-is-whole", largeMessageIsWhole, false, false},
		{"transactions-commit-and-roll-back", transactionsCommitAndRollBack, false, false},
		{"transactions-are-whole-though-their-answers-are-lost", transactionsAreWholeThoughTheirAnswersAreLost, false, true},
		{"missing-things-give-404", missingThingsGive404, false, false},
		{"reserved-names-give-403", reservedNamesGive403, false, false},
		{"other-connections-exclusive-queue-gives-405", otherConnectionsExclusiveQueueGives405, false, false},
		{"disagreement-gives-406", disagreementGives406, false, false},
		{"unknown-exchange-type-gives-503", unknownExchangeTypeGives503, false, false},
		{"stream-is-read-from-an-offset", streamIsReadFromAnOffset, false, false},
		{"group-goes-on-where-it-acked", groupGoesOnWhereItAcked, false, true},
		{"durable-messages-survive-a-restart", durableMessagesSurviveARestart, true, false},
		{"recovery-comes-back-after-a-restart", recoveryComesBackAfterARestart, true, false},
	}
}

func openChannel() *amqp.Channel { return must(connection.Channel()) }

func confirming() *amqp.Channel {
	channel := openChannel()
	ok(channel.Confirm(false), "confirm.select")
	return channel
}

func temporaryQueue(channel *amqp.Channel, arguments amqp.Table) string {
	return must(channel.QueueDeclare("", false, false, true, false, arguments)).Name
}

func text(body string) amqp.Publishing {
	return amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent}
}

// publish returns whether the broker confirmed.
func publish(channel *amqp.Channel, exchange, key string, message amqp.Publishing) bool {
	confirm := must(channel.PublishWithDeferredConfirm(exchange, key, false, false, message))
	limit, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	return must(confirm.WaitContext(limit))
}

func getOne(channel *amqp.Channel, queue string, autoAck bool) amqp.Delivery {
	for end := time.Now().Add(waitTime); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		message, found, err := channel.Get(queue, autoAck)
		ok(err, "basic.get")
		if found {
			return message
		}
	}
	fail("timed out: a message in %s", queue)
	panic("unreachable")
}

func getAll(channel *amqp.Channel, queue string) []string {
	bodies := []string{}
	for {
		message, found, err := channel.Get(queue, true)
		ok(err, "basic.get")
		if !found {
			return bodies
		}
		bodies = append(bodies, string(message.Body))
	}
}

func ready(channel *amqp.Channel, queue string) int {
	return must(channel.QueueDeclarePassive(queue, false, false, false, false, nil)).Messages
}

func numbers(from, to int) []string {
	all := []string{}
	for n := from; n < to; n++ {
		all = append(all, fmt.Sprint(n))
	}
	return all
}

func serverProperties() {
	for _, key := range []string{"product", "version"} {
		if connection.Properties[key] == nil {
			fail("no server property %s", key)
		}
	}
	capabilities, _ := connection.Properties["capabilities"].(amqp.Table)
	for _, key := range []string{"publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked"} {
		equal(capabilities[key], true, key)
	}
}

func refused(change func(*url.URL), code int) {
	other := must(url.Parse(amqpURL))
	change(other)
	dialled, err := amqp.Dial(other.String())
	if err == nil {
		_ = dialled.Close()
		fail("connected to %s", other)
	}
	var closed *amqp.Error
	if !errors.As(err, &closed) {
		fail("not a broker's error: %v", err)
	}
	equal(closed.Code, code, "reply code")
}

func wrongPasswordIsRefused() {
	refused(func(other *url.URL) { other.User = url.UserPassword(other.User.Username(), "not-the-password") }, 403)
}

func unknownVhostIsRefused() {
	refused(func(other *url.URL) { other.Path, other.RawPath = "/no-such-vhost", "" }, 530)
}

func exchangeTypesRoute() {
	channel := confirming()
	defer channel.Close()
	for _, one := range []struct {
		kind, binding, hit, miss string
		arguments                amqp.Table
		hitHeaders, missHeaders  amqp.Table
	}{
		{kind: "direct", binding: "red", hit: "red", miss: "blue"},
		{kind: "fanout", hit: "anything"},
		{kind: "topic", binding: "stock.*.#", hit: "stock.eur.a", miss: "bond.eur"},
		{
			kind:        "headers",
			arguments:   amqp.Table{"x-match": "all", "a": int32(1), "b": "two"},
			hitHeaders:  amqp.Table{"a": int32(1), "b": "two"},
			missHeaders: amqp.Table{"a": int32(1)},
		},
	} {
		exchange, queue := name(one.kind), temporaryQueue(channel, nil)
		ok(channel.ExchangeDeclare(exchange, one.kind, false, true, false, false, nil), "exchange.declare")
		ok(channel.QueueBind(queue, one.binding, exchange, false, one.arguments), "queue.bind")
		equal(publish(channel, exchange, one.hit, amqp.Publishing{Body: []byte("hit"), Headers: one.hitHeaders}), true, "hit")
		if one.miss != "" || one.missHeaders != nil {
			miss := amqp.Publishing{Body: []byte("miss"), Headers: one.missHeaders}
			equal(publish(channel, exchange, one.miss, miss), true, "unroutable is confirmed")
		}
		equal(getAll(channel, queue), []string{"hit"}, one.kind)
		ok(channel.QueueUnbind(queue, one.binding, exchange, one.arguments), "queue.unbind")
	}
}

func exchangeToExchangeRoutes() {
	channel := confirming()
	defer channel.Close()
	source, destination, queue := name("source"), name("destination"), temporaryQueue(channel, nil)
	ok(channel.ExchangeDeclare(source, "topic", false, false, false, false, nil), "source")
	ok(channel.ExchangeDeclare(destination, "fanout", false, false, true, false, nil), "internal destination")
	ok(channel.ExchangeBind(destination, "a.#", source, false, nil), "exchange.bind")
	ok(channel.QueueBind(queue, "", destination, false, nil), "queue.bind")
	publish(channel, source, "a.b", text("through two"))
	equal(getAll(channel, queue), []string{"through two"}, "exchange to exchange")
	ok(channel.ExchangeUnbind(destination, "a.#", source, false, nil), "exchange.unbind")
	publish(channel, source, "a.b", text("no more"))
	equal(getAll(channel, queue), []string{}, "after exchange.unbind")
	ok(channel.QueueUnbind(queue, "", destination, nil), "queue.unbind")
	ok(channel.ExchangeDelete(source, false, false), "exchange.delete")
	ok(channel.ExchangeDelete(destination, true, false), "exchange.delete if-unused")
}

func expiredMessagesAreDeadLettered() {
	channel := openChannel()
	defer channel.Close()
	dead := temporaryQueue(channel, nil)
	queue := temporaryQueue(channel, amqp.Table{
		amqp.QueueMessageTTLArg:     int32(30),
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": dead,
	})
	ok(channel.Publish("", queue, false, false, text("short life")), "publish")
	message := getOne(channel, dead, true)
	equal(string(message.Body), "short life", "dead letter")
	deaths, _ := message.Headers["x-death"].([]any)
	if len(deaths) != 1 {
		fail("x-death: %#v", message.Headers)
	}
	death, _ := deaths[0].(amqp.Table)
	equal([]any{death["reason"], death["queue"], death["count"]}, []any{"expired", queue, int64(1)}, "x-death")
}

func purgeAndDeleteCount() {
	channel := confirming()
	defer channel.Close()
	queue := must(channel.QueueDeclare(name("purged"), true, false, false, false, nil)).Name
	for n := 0; n < 3; n++ {
		publish(channel, "", queue, text("x"))
	}
	equal(must(channel.QueuePurge(queue, false)), 3, "purge-ok")
	publish(channel, "", queue, text("x"))
	equal(must(channel.QueueDelete(queue, false, false, false)), 1, "delete-ok")
}

func publishesAreConfirmed() {
	channel := confirming()
	defer channel.Close()
	queue := must(channel.QueueDeclare(name("confirmed"), true, false, false, false, nil)).Name
	confirms := []*amqp.DeferredConfirmation{}
	for n := 0; n < 500; n++ {
		confirms = append(confirms, must(channel.PublishWithDeferredConfirm("", queue, false, false, text(fmt.Sprint(n)))))
	}
	for _, confirm := range confirms {
		equal(confirm.Wait(), true, "confirm")
	}
	equal(ready(channel, queue), 500, "after the confirms")
	equal(getAll(channel, queue), numbers(0, 500), "order")
	must(channel.QueueDelete(queue, false, false, false))
}

func fullQueueNacks() {
	channel := confirming()
	defer channel.Close()
	queue := temporaryQueue(channel, amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	equal(publish(channel, "", queue, text("fits")), true, "first confirm")
	equal(publish(channel, "", queue, text("does not")), false, "second confirm")
}

func unroutableMandatoryReturns() {
	channel := confirming()
	defer channel.Close()
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	confirm := must(channel.PublishWithDeferredConfirm("", name("nowhere"), true, false, text("come back")))
	equal(confirm.Wait(), true, "confirm")
	returned := receive(returns, "basic.return")
	equal(returned.ReplyCode, uint16(312), "reply code")
	equal(returned.ReplyText, "NO_ROUTE", "reply text")
	equal(string(returned.Body), "come back", "body")
}

func prefetchBoundsUnacked() {
	channel, other := confirming(), openChannel()
	defer other.Close()
	queue := temporaryQueue(channel, nil)
	for n := 0; n < 10; n++ {
		publish(channel, "", queue, text(fmt.Sprint(n)))
	}
	ok(channel.Qos(3, 0, false), "basic.qos")
	deliveries := must(channel.Consume(queue, "", false, false, false, false, nil))
	got := []amqp.Delivery{}
	await := func(count int) {
		for len(got) < count {
			got = append(got, receive(deliveries, "a delivery"))
		}
		equal(ready(channel, queue), 10-count, "ready behind the prefetch")
		select {
		case extra := <-deliveries:
			fail("a delivery beyond the prefetch: %s", extra.Body)
		default:
		}
	}
	await(3)
	ok(got[2].Ack(true), "ack multiple")
	await(6)
	ok(got[3].Ack(false), "ack")
	await(7)
	ok(got[6].Ack(true), "ack multiple")
	await(10)
	ok(got[9].Ack(true), "ack multiple")
	for n, message := range got {
		equal(string(message.Body), fmt.Sprint(n), "order")
	}
	ok(channel.Close(), "channel.close")
	equal(ready(other, queue), 0, "after all acks")
}

// streamWith declares a stream with so many numbered messages.
func streamWith(count int) string {
	channel := confirming()
	defer channel.Close()
	arguments := amqp.Table{"x-queue-type": "stream"}
	stream := must(channel.QueueDeclare(name(fmt.Sprintf("stream-%d", count)), true, false, false, false, arguments)).Name
	for n := 0; n < count; n++ {
		equal(publish(channel, "", stream, text(fmt.Sprint(n))), true, "confirm")
	}
	return stream
}

// read consumes so many messages on a separate channel, and acks the first ones. The channel is closed with the rest.
func read(queue string, count, acks int, arguments amqp.Table) []amqp.Delivery {
	channel := openChannel()
	ok(channel.Qos(10, 0, false), "basic.qos")
	deliveries := must(channel.Consume(queue, "", false, false, false, false, arguments))
	got := []amqp.Delivery{}
	for len(got) < count {
		message := receive(deliveries, fmt.Sprintf("message %d of %s", len(got), queue))
		if len(got) < acks {
			ok(message.Ack(false), "ack")
		}
		got = append(got, message)
	}
	ok(channel.Close(), "channel.close")
	return got
}

// inOrder expects messages whose bodies are their offsets, from one offset on.
func inOrder(got []amqp.Delivery, first int) {
	for n, message := range got {
		equal(message.Headers["x-stream-offset"], int64(first+n), "x-stream-offset")
		equal(string(message.Body), fmt.Sprint(first+n), "body")
	}
}

func streamIsReadFromAnOffset() {
	stream := streamWith(50)
	for range []int{1, 2} {
		inOrder(read(stream, 30, 30, amqp.Table{"x-stream-offset": int32(20)}), 20)
		inOrder(read(stream, 50, 50, amqp.Table{"x-stream-offset": "first"}), 0)
	}
	inOrder(read(stream, 50, 50, amqp.Table{"x-stream-offset": time.Now().Add(-time.Hour)}), 0)
	inOrder(read(stream, 50, 50, amqp.Table{"x-stream-offset": "1h"}), 0)
	channel := openChannel()
	defer channel.Close()
	must(channel.QueueDelete(stream, false, false, false))
}

func groupGoesOnWhereItAcked() {
	stream, channel := streamWith(50), openChannel()
	defer channel.Close()
	arguments := amqp.Table{"x-queue-type": "stream-group", "x-stream": stream, "x-stream-offset": "first"}
	group := must(channel.QueueDeclare(name("group"), true, false, false, false, arguments)).Name
	got := read(group, 31, 30, nil)
	inOrder(got, 0)
	for _, message := range got {
		equal(message.Headers["x-stream"], stream, "x-stream")
	}
	got = read(group, 20, 20, nil)
	inOrder(got, 30)
	equal(got[0].Redelivered, true, "what the first member held and had not acked is flagged")
	_, found, err := channel.Get(group, true)
	ok(err, "basic.get")
	equal(found, false, "one more than was published")
	equal(ready(channel, group), 0, "messages of the group")
	must(channel.QueueDelete(group, false, false, false))
	must(channel.QueueDelete(stream, false, false, false))
}

func requeuedComesBackRedelivered() {
	channel := confirming()
	defer channel.Close()
	queue := temporaryQueue(channel, nil)
	publish(channel, "", queue, text("first"))
	publish(channel, "", queue, text("second"))
	first := getOne(channel, queue, false)
	equal([]any{string(first.Body), first.Redelivered, first.MessageCount}, []any{"first", false, uint32(1)}, "get")
	ok(first.Nack(false, true), "nack")
	again := getOne(channel, queue, false)
	equal([]any{string(again.Body), again.Redelivered}, []any{"first", true}, "in its old place, flagged")
	ok(again.Reject(false), "reject")
	equal(getAll(channel, queue), []string{"second"}, "after the reject")
}

func consumerIsToldOfTheQueuesEnd() {
	channel, other := openChannel(), openChannel()
	defer channel.Close()
	defer other.Close()
	queue := must(channel.QueueDeclare(name("doomed"), false, false, false, false, nil)).Name
	cancels := channel.NotifyCancel(make(chan string, 1))
	deliveries := must(channel.Consume(queue, "the-consumer", false, false, false, false, nil))
	must(other.QueueDelete(queue, false, false, false))
	equal(receive(cancels, "basic.cancel"), "the-consumer", "consumer tag")
	select {
	case _, open := <-deliveries:
		equal(open, false, "deliveries open")
	case <-time.After(waitTime):
		fail("the deliveries did not end")
	}
}

func propertiesComeBackAsSent() {
	channel := openChannel()
	defer channel.Close()
	queue := temporaryQueue(channel, nil)
	sent := amqp.Publishing{
		Headers: amqp.Table{
			"text": "größe", "int16": int16(-7), "int": int32(-7), "long": int64(1) << 40, "byte": byte(200),
			"int8": int8(-1), "float": float32(1.5), "double": 2.5, "yes": true, "none": nil,
			"decimal": amqp.Decimal{Scale: 2, Value: 314}, "time": time.Unix(1700000000, 0), "bytes": []byte{0, 255},
			"list": []any{int32(1), "two", amqp.Table{"three": int32(3)}}, "table": amqp.Table{"deep": amqp.Table{"x": "y"}},
		},
		ContentType: "application/json", ContentEncoding: "utf-8", DeliveryMode: amqp.Persistent, Priority: 7,
		CorrelationId: "c-1", ReplyTo: "r-1", Expiration: "60000", MessageId: "m-1", Timestamp: time.Unix(1700000000, 0),
		Type: "t-1", AppId: "a-1",
	}
	ok(channel.Publish("", queue, false, false, sent), "publish")
	got := getOne(channel, queue, true)
	equal(len(got.Body), 0, "empty body")
	for key, value := range sent.Headers {
		equal(got.Headers[key], value, "header "+key)
	}
	equal(len(got.Headers), len(sent.Headers), "headers")
	equal(
		[]any{got.ContentType, got.ContentEncoding, got.DeliveryMode, got.Priority, got.CorrelationId, got.ReplyTo},
		[]any{sent.ContentType, sent.ContentEncoding, sent.DeliveryMode, sent.Priority, sent.CorrelationId, sent.ReplyTo},
		"properties",
	)
	equal(
		[]any{got.Expiration, got.MessageId, got.Timestamp.Unix(), got.Type, got.AppId},
		[]any{sent.Expiration, sent.MessageId, sent.Timestamp.Unix(), sent.Type, sent.AppId},
		"properties",
	)
}

func largeMessageIsWhole() {
	channel := openChannel()
	defer channel.Close()
	queue := temporaryQueue(channel, nil)
	body := append(bytes.Repeat([]byte("0123456789abcdef"), 65536), "tail"...)
	ok(channel.Publish("", queue, false, false, amqp.Publishing{Body: body}), "publish")
	if !bytes.Equal(getOne(channel, queue, true).Body, body) {
		fail("1 MiB came back changed")
	}
}

func transactionsCommitAndRollBack() {
	channel, other := openChannel(), openChannel()
	defer channel.Close()
	defer other.Close()
	queue := temporaryQueue(channel, nil)
	ok(channel.Tx(), "tx.select")
	ok(channel.Publish("", queue, false, false, text("rolled back")), "publish")
	ok(channel.TxRollback(), "tx.rollback")
	ok(channel.Publish("", queue, false, false, text("committed")), "publish")
	equal(ready(other, queue), 0, "before the commit")
	ok(channel.TxCommit(), "tx.commit")
	equal(getAll(other, queue), []string{"committed"}, "after the commit")
}

// expectClose expects the act to close its own channel with this code and text, and the connection to stay open.
func expectClose(code int, part string, act func(*amqp.Channel) error) {
	channel := openChannel()
	closes := channel.NotifyClose(make(chan *amqp.Error, 1))
	_ = act(channel)
	closed := receive(closes, fmt.Sprintf("channel close %d", code))
	equal(closed.Code, code, "reply code")
	contains(closed.Reason, part)
	fresh := openChannel()
	temporaryQueue(fresh, nil)
	ok(fresh.Close(), "channel.close")
}

func missingThingsGive404() {
	missing := name("missing")
	noQueue, noExchange := fmt.Sprintf("no queue '%s' in vhost '/'", missing), fmt.Sprintf("no exchange '%s' in vhost '/'", missing)
	expectClose(404, noQueue, func(channel *amqp.Channel) error {
		_, err := channel.QueueDeclarePassive(missing, false, false, false, false, nil)
		return err
	})
	expectClose(404, noQueue, func(channel *amqp.Channel) error {
		_, err := channel.Consume(missing, "", false, false, false, false, nil)
		return err
	})
	expectClose(404, noExchange, func(channel *amqp.Channel) error {
		return channel.Publish(missing, "", false, false, text("x"))
	})
}

func reservedNamesGive403() {
	expectClose(403, "contains reserved prefix", func(channel *amqp.Channel) error {
		_, err := channel.QueueDeclare("amq.mine", false, false, false, false, nil)
		return err
	})
	channel, exchange := openChannel(), name("internal")
	defer channel.Close()
	ok(channel.ExchangeDeclare(exchange, "fanout", false, false, true, false, nil), "internal exchange")
	expectClose(403, "cannot publish to internal exchange", func(own *amqp.Channel) error {
		return own.Publish(exchange, "", false, false, text("x"))
	})
	ok(channel.ExchangeDelete(exchange, false, false), "exchange.delete")
}

func otherConnectionsExclusiveQueueGives405() {
	other := must(amqp.Dial(amqpURL))
	defer other.Close()
	queue := temporaryQueue(must(other.Channel()), nil)
	expectClose(405, fmt.Sprintf("exclusive access to locked queue '%s'", queue), func(channel *amqp.Channel) error {
		_, err := channel.QueuePurge(queue, false)
		return err
	})
}

func disagreementGives406() {
	channel := openChannel()
	defer channel.Close()
	queue := name("agreed")
	must(channel.QueueDeclare(queue, false, false, true, false, amqp.Table{"x-max-length": int32(10)}))
	expectClose(406, "inequivalent arg 'x-max-length'", func(own *amqp.Channel) error {
		_, err := own.QueueDeclare(queue, false, false, true, false, nil)
		return err
	})
	expectClose(406, "unknown delivery tag 99", func(own *amqp.Channel) error { return own.Ack(99, false) })
}

func unknownExchangeTypeGives503() {
	other := must(amqp.Dial(amqpURL))
	closes := other.NotifyClose(make(chan *amqp.Error, 1))
	_ = must(other.Channel()).ExchangeDeclare(name("strange"), "no-such-type", false, false, false, false, nil)
	closed := receive(closes, "connection close")
	equal(closed.Code, 503, "reply code")
	contains(closed.Reason, "unknown exchange type 'no-such-type'")
	openChannel().Close()
}

func dialAgain() *amqp.Connection {
	for end := time.Now().Add(restartTime); ; time.Sleep(300 * time.Millisecond) {
		fresh, err := amqp.Dial(amqpURL)
		if err == nil {
			return fresh
		}
		if time.Now().After(end) {
			fail("reconnect: %v", err)
		}
	}
}

func durableMessagesSurviveARestart() {
	old := dialAgain()
	channel := must(old.Channel())
	ok(channel.Confirm(false), "confirm.select")
	queue := must(channel.QueueDeclare(name("durable"), true, false, false, false, nil)).Name
	for n := 0; n < 50; n++ {
		equal(publish(channel, "", queue, text(fmt.Sprint(n))), true, "confirm")
	}
	equal(string(getOne(channel, queue, false).Body), "0", "held over the restart")
	closes := old.NotifyClose(make(chan *amqp.Error, 1))
	restartBroker()
	receive(closes, "the old connection noticed")
	fresh := dialAgain()
	defer fresh.Close()
	channel = must(fresh.Channel())
	first := getOne(channel, queue, true)
	equal([]any{string(first.Body), first.Redelivered}, []any{"0", true}, "first message after the restart")
	equal(getAll(channel, queue), numbers(1, 50), "messages after the restart")
	must(channel.QueueDelete(queue, false, false, false))
}

func recoveryComesBackAfterARestart() {
	config := amqp.Config{Recovery: &amqp.Recovery{
		ReconnectionConfig: &amqp.ReconnectionConfig{MaxRetryCount: 50, RetryInterval: 300 * time.Millisecond},
	}}
	recovering := must(amqp.DialConfig(amqpURL, config))
	defer recovering.Close()
	channel := must(recovering.Channel())
	ok(channel.Qos(1, 0, false), "basic.qos")
	queue := must(channel.QueueDeclare(name("recovered"), true, false, false, false, nil)).Name
	deliveries := must(channel.Consume(queue, "", false, false, false, false, nil))
	publisher := must(dialAgain().Channel())
	ok(publisher.Confirm(false), "confirm.select")
	for n := 0; n < 20; n++ {
		equal(publish(publisher, "", queue, text(fmt.Sprint(n))), true, "confirm")
	}
	equal(string(receive(deliveries, "a delivery before the restart").Body), "0", "held over the restart")
	restartBroker()
	for n := 0; n < 20; n++ {
		message := receive(deliveries, fmt.Sprintf("delivery %d after the restart", n))
		equal(string(message.Body), fmt.Sprint(n), "order after the restart")
		if n == 0 {
			equal(message.Redelivered, true, "redelivered")
		}
		ok(message.Ack(false), "ack")
	}
	must(channel.QueueDelete(queue, false, false, false))
}

// closeReturnsWhateverIsUnderWay closes connections that have just published, and are perhaps still writing.
func closeReturnsWhateverIsUnderWay() {
	for number := 0; number < 100; number++ {
		closing := must(amqp.Dial(amqpURL))
		channel := must(closing.Channel())
		queue := temporaryQueue(channel, nil)
		deliveries := must(channel.Consume(queue, "", true, false, false, false, nil))
		go func() {
			for range deliveries {
			}
		}()
		for message := 0; message < 10; message++ {
			ok(channel.Publish("", queue, false, false, text("m")), "publish")
		}
		closed := make(chan error, 1)
		go func() { closed <- closing.Close() }()
		select {
		case err := <-closed:
			ok(err, "close")
		case <-time.After(waitTime):
			fail("close number %d does not return", number)
		}
	}
}

func aShortHeartbeatKeepsTheConnection() {
	config := amqp.Config{Heartbeat: time.Second}
	idle := must(amqp.DialConfig(amqpURL, config))
	ended := idle.NotifyClose(make(chan *amqp.Error, 1))
	select {
	case reason := <-ended:
		fail("the connection ended: %v", reason)
	case <-time.After(5 * time.Second):
	}
	must(idle.Channel())
	ok(idle.Close(), "close")
}
