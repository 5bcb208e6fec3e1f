import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.CancelCallback;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DeliverCallback;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Method;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.Return;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** RabbitMQ's own Java client against any broker; its automatic recovery must bring everything back. */
public final class Program {
    private static final CancelCallback NOT_CANCELLED = tag -> { };

    private final ConnectionFactory factory = new ConnectionFactory();
    private Connection connection;

    private interface Act {
        void on(Channel channel) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Checks.limitTheProgram();
        Runtime.getRuntime().halt(new Program().checkAll(new Checks()));
    }

    private int checkAll(Checks checks) throws Exception {
        factory.setUri(Checks.AMQP_URL);
        factory.setNetworkRecoveryInterval(300);
        connection = factory.newConnection();
        checks.run("server-properties", this::serverProperties);
        checks.run("wrong-password-is-refused", this::wrongPasswordIsRefused);
        checks.run("unknown-vhost-is-refused", this::unknownVhostIsRefused);
        checks.run("close-returns-whatever-is-under-way", this::closeReturnsWhateverIsUnderWay);
        checks.run("a-short-heartbeat-keeps-the-connection", this::aShortHeartbeatKeepsTheConnection);
        checks.run("exchange-types-route", this::exchangeTypesRoute);
        checks.run("exchange-to-exchange-and-alternate-route", this::exchangeToExchangeAndAlternateRoute);
        checks.run("expired-messages-are-dead-lettered", this::expiredMessagesAreDeadLettered);
        checks.run("purge-and-delete-count", this::purgeAndDeleteCount);
        checks.run("publishes-are-confirmed", this::publishesAreConfirmed);
        checks.run("full-queue-nacks", this::fullQueueNacks);
        checks.run("unroutable-mandatory-returns", this::unroutableMandatoryReturns);
        checks.run("prefetch-bounds-unacked", this::prefetchBoundsUnacked);
        checks.run("requeued-comes-back-redelivered", this::requeuedComesBackRedelivered);
        checks.run("consumer-is-told-of-the-queues-end", this::consumerIsToldOfTheQueuesEnd);
        checks.run("direct-reply-to-answers", this::directReplyToAnswers);
        checks.run("properties-come-back-as-sent", this::propertiesComeBackAsSent);
        checks.run("large-message-is-whole", this::largeMessageIsWhole);
        checks.run("transactions-commit-and-roll-back", this::transactionsCommitAndRollBack);
        checks.run("missing-things-give-404", this::missingThingsGive404);
        checks.run("reserved-names-give-403", this::reservedNamesGive403);
        checks.run("other-connections-exclusive-queue-gives-405", this::otherConnectionsExclusiveQueueGives405);
        checks.run("disagreement-gives-406", this::disagreementGives406);
        checks.run("stream-is-read-from-an-offset", this::streamIsReadFromAnOffset);
        checks.runWithGroups("group-goes-on-where-it-acked", this::groupGoesOnWhereItAcked);
        checks.runWithRestart("recovery-comes-back-after-a-restart", this::recoveryComesBackAfterARestart);
        connection.close();
        return checks.finish();
    }

    private Connection another(int heartbeatSeconds) throws Exception {
        ConnectionFactory other = new ConnectionFactory();
        other.setUri(Checks.AMQP_URL);
        other.setAutomaticRecoveryEnabled(false);
        other.setRequestedHeartbeat(heartbeatSeconds);
        return other.newConnection();
    }

    private void closeReturnsWhateverIsUnderWay() throws Exception {
        for (int number = 0; number < 100; number++) {
            Connection closing = another(60);
            Channel channel = closing.createChannel();
            String queue = temporaryQueue(channel, null);
            channel.basicConsume(queue, true, (tag, delivery) -> { }, NOT_CANCELLED);
            for (int message = 0; message < 10; message++) {
                channel.basicPublish("", queue, null, bytes("m"));
            }
            closing.close((int) Checks.WAIT_MS);
        }
    }

    private void aShortHeartbeatKeepsTheConnection() throws Exception {
        Connection idle = another(1);
        Thread.sleep(5000);
        idle.createChannel().close();
        idle.close();
    }

    // Shared by the checks

    private Channel confirming() throws IOException {
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        return channel;
    }

    private static String temporaryQueue(Channel channel, Map<String, Object> arguments) throws IOException {
        return channel.queueDeclare("", false, true, false, arguments).getQueue();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    private static void publish(Channel channel, String exchange, String key, String body) throws Exception {
        channel.basicPublish(exchange, key, MessageProperties.PERSISTENT_BASIC, bytes(body));
        channel.waitForConfirmsOrDie(Checks.WAIT_MS);
    }

    private static GetResponse getOne(Channel channel, String queue, boolean autoAck) throws Exception {
        long end = System.currentTimeMillis() + Checks.WAIT_MS;
        while (System.currentTimeMillis() < end) {
            GetResponse response = channel.basicGet(queue, autoAck);
            if (response != null) {
                return response;
            }
            Thread.sleep(20);
        }
        throw new Checks.CheckFailed("timed out: a message in " + queue);
    }

    private static List<String> getAll(Channel channel, String queue) throws IOException {
        List<String> bodies = new ArrayList<>();
        for (GetResponse one; (one = channel.basicGet(queue, true)) != null; ) {
            bodies.add(text(one.getBody()));
        }
        return bodies;
    }

    private static List<String> numbers(int count) {
        List<String> all = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            all.add(Integer.toString(n));
        }
        return all;
    }

    private static ShutdownSignalException signalOf(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof ShutdownSignalException) {
                return (ShutdownSignalException) cause;
            }
        }
        return null;
    }

    // Connection

    private void serverProperties() {
        Map<String, Object> properties = connection.getServerProperties();
        Checks.that(properties.get("product") != null, "product");
        Checks.that(properties.get("version") != null, "version");
        Map<?, ?> capabilities = (Map<?, ?>) properties.get("capabilities");
        for (String key : List.of("publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked")) {
            Checks.equal(capabilities.get(key), true, key);
        }
    }

    private void wrongPasswordIsRefused() throws Exception {
        ConnectionFactory other = factory.clone();
        other.setPassword("not-the-password");
        try {
            other.newConnection().close();
        } catch (AuthenticationFailureException refused) {
            Checks.contains(refused.getMessage(), "ACCESS_REFUSED");
            return;
        }
        throw new Checks.CheckFailed("connected");
    }

    private void unknownVhostIsRefused() throws Exception {
        ConnectionFactory other = factory.clone();
        other.setVirtualHost("no-such-vhost");
        try {
            other.newConnection().close();
        } catch (IOException refused) {
            AMQP.Connection.Close close = (AMQP.Connection.Close) signalOf(refused).getReason();
            Checks.equal(close.getReplyCode(), 530, "reply code");
            Checks.contains(close.getReplyText(), "vhost no-such-vhost not found");
            return;
        }
        throw new Checks.CheckFailed("connected");
    }

    // Topology

    private record Route(
            String kind, String binding, Map<String, Object> arguments,
            String hit, Map<String, Object> hitHeaders, String miss, Map<String, Object> missHeaders) { }

    private void exchangeTypesRoute() throws Exception {
        Channel channel = confirming();
        for (Route route : List.of(
                new Route("direct", "red", null, "red", null, "blue", null),
                new Route("fanout", "", null, "anything", null, null, null),
                new Route("topic", "stock.*.#", null, "stock.eur.a", null, "bond.eur", null),
                new Route("headers", "", Map.of("x-match", "any", "a", 1, "b", "two"), "", Map.of("b", "two"),
                        "", Map.of("b", "three")))) {
            String exchange = Checks.name(route.kind);
            channel.exchangeDeclare(exchange, route.kind, false, true, null);
            String queue = temporaryQueue(channel, null);
            channel.queueBind(queue, exchange, route.binding, route.arguments);
            channel.basicPublish(exchange, route.hit,
                    new AMQP.BasicProperties.Builder().headers(route.hitHeaders).build(), bytes("hit"));
            if (route.miss != null) {
                channel.basicPublish(exchange, route.miss,
                        new AMQP.BasicProperties.Builder().headers(route.missHeaders).build(), bytes("miss"));
            }
            channel.waitForConfirmsOrDie(Checks.WAIT_MS);
            Checks.equal(getAll(channel, queue), List.of("hit"), route.kind);
            channel.queueUnbind(queue, exchange, route.binding, route.arguments);
        }
        channel.close();
    }

    private void exchangeToExchangeAndAlternateRoute() throws Exception {
        Channel channel = confirming();
        String alternate = Checks.name("alternate");
        String source = Checks.name("source");
        String destination = Checks.name("destination");
        channel.exchangeDeclare(alternate, "fanout");
        channel.exchangeDeclare(source, "topic", false, false, Map.of("alternate-exchange", alternate));
        channel.exchangeDeclare(destination, "fanout", false, false, true, null);
        String queue = temporaryQueue(channel, null);
        String unrouted = temporaryQueue(channel, null);
        channel.exchangeBind(destination, source, "a.#");
        channel.queueBind(queue, destination, "");
        channel.queueBind(unrouted, alternate, "");
        publish(channel, source, "a.b", "through two");
        publish(channel, source, "b.b", "unrouted");
        Checks.equal(getAll(channel, queue), List.of("through two"), "exchange to exchange");
        Checks.equal(getAll(channel, unrouted), List.of("unrouted"), "alternate exchange");
        channel.exchangeUnbind(destination, source, "a.#");
        for (String exchange : List.of(source, destination, alternate)) {
            channel.exchangeDelete(exchange);
        }
        channel.close();
    }

    private void expiredMessagesAreDeadLettered() throws Exception {
        Channel channel = connection.createChannel();
        String dead = temporaryQueue(channel, null);
        String queue = temporaryQueue(channel, Map.of(
                "x-message-ttl", 30, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
        channel.basicPublish("", queue, null, bytes("short life"));
        GetResponse got = getOne(channel, dead, true);
        Checks.equal(text(got.getBody()), "short life", "dead letter");
        List<?> deaths = (List<?>) got.getProps().getHeaders().get("x-death");
        Map<?, ?> death = (Map<?, ?>) deaths.get(0);
        Checks.equal(death.get("reason").toString(), "expired", "x-death reason");
        Checks.equal(death.get("queue").toString(), queue, "x-death queue");
        Checks.equal(death.get("count"), 1L, "x-death count");
        Checks.that(death.get("time") instanceof Date, "x-death time is a timestamp");
        channel.close();
    }

    private void purgeAndDeleteCount() throws Exception {
        Channel channel = confirming();
        String queue = Checks.name("purged");
        channel.queueDeclare(queue, true, false, false, null);
        for (int n = 0; n < 3; n++) {
            publish(channel, "", queue, "x");
        }
        Checks.equal(channel.queuePurge(queue).getMessageCount(), 3, "purge-ok");
        publish(channel, "", queue, "x");
        Checks.equal(channel.queueDelete(queue).getMessageCount(), 1, "delete-ok");
        channel.close();
    }

    // Confirms and returns

    private void publishesAreConfirmed() throws Exception {
        Channel channel = confirming();
        String queue = Checks.name("confirmed");
        channel.queueDeclare(queue, true, false, false, null);
        for (String number : numbers(500)) {
            channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, bytes(number));
        }
        channel.waitForConfirmsOrDie(Checks.WAIT_MS);
        Checks.equal(channel.messageCount(queue), 500L, "after the confirms");
        Checks.equal(getAll(channel, queue), numbers(500), "order");
        channel.queueDelete(queue);
        channel.close();
    }

    private void fullQueueNacks() throws Exception {
        Channel channel = confirming();
        String queue = temporaryQueue(channel, Map.of("x-max-length", 1, "x-overflow", "reject-publish"));
        BlockingQueue<String> outcomes = new LinkedBlockingQueue<>();
        channel.addConfirmListener((tag, multiple) -> outcomes.add("ack"), (tag, multiple) -> outcomes.add("nack"));
        channel.basicPublish("", queue, null, bytes("fits"));
        Checks.equal(Checks.take(outcomes, "first confirm"), "ack", "first confirm");
        channel.basicPublish("", queue, null, bytes("does not"));
        Checks.equal(Checks.take(outcomes, "second confirm"), "nack", "second confirm");
        channel.close();
    }

    private void unroutableMandatoryReturns() throws Exception {
        Channel channel = confirming();
        BlockingQueue<Return> returns = new LinkedBlockingQueue<>();
        channel.addReturnListener(returns::add);
        channel.basicPublish("", Checks.name("nowhere"), true, null, bytes("come back"));
        channel.waitForConfirmsOrDie(Checks.WAIT_MS);
        Return returned = Checks.take(returns, "basic.return");
        Checks.equal(returned.getReplyCode(), 312, "reply code");
        Checks.equal(returned.getReplyText(), "NO_ROUTE", "reply text");
        Checks.equal(text(returned.getBody()), "come back", "body");
        channel.close();
    }

    // Consuming

    private void prefetchBoundsUnacked() throws Exception {
        Channel channel = confirming();
        Channel other = connection.createChannel();
        String queue = temporaryQueue(channel, null);
        for (String number : numbers(10)) {
            publish(channel, "", queue, number);
        }
        channel.basicQos(3);
        BlockingQueue<Delivery> arrived = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, false, (DeliverCallback) (tag, delivery) -> arrived.add(delivery), NOT_CANCELLED);
        List<Delivery> got = new ArrayList<>();
        receive(arrived, got, 3, other, queue);
        channel.basicAck(got.get(2).getEnvelope().getDeliveryTag(), true);
        receive(arrived, got, 6, other, queue);
        channel.basicAck(got.get(3).getEnvelope().getDeliveryTag(), false);
        receive(arrived, got, 7, other, queue);
        channel.basicAck(got.get(6).getEnvelope().getDeliveryTag(), true);
        receive(arrived, got, 10, other, queue);
        channel.basicAck(got.get(9).getEnvelope().getDeliveryTag(), true);
        List<String> bodies = new ArrayList<>();
        got.forEach(delivery -> bodies.add(text(delivery.getBody())));
        Checks.equal(bodies, numbers(10), "order");
        channel.close();
        Checks.equal(other.messageCount(queue), 0L, "after all acks");
        other.close();
    }

    private static void receive(
            BlockingQueue<Delivery> arrived, List<Delivery> got, int count, Channel other, String queue)
            throws Exception {
        while (got.size() < count) {
            got.add(Checks.take(arrived, "a delivery"));
        }
        Checks.equal(other.messageCount(queue), 10L - count, "ready behind the prefetch");
        Checks.that(arrived.isEmpty(), "a delivery beyond the prefetch");
    }

    /** Declare a stream with so many numbered messages. */
    private String streamWith(int count) throws Exception {
        Channel channel = confirming();
        String stream = Checks.name("stream-" + count);
        channel.queueDeclare(stream, true, false, false, Map.of("x-queue-type", "stream"));
        for (String number : numbers(count)) {
            publish(channel, "", stream, number);
        }
        channel.close();
        return stream;
    }

    /** Consume so many messages on a separate channel, and ack the first ones. It is closed with the unacked rest. */
    private List<Delivery> read(String queue, int count, int acks, Map<String, Object> arguments) throws Exception {
        Channel channel = connection.createChannel();
        channel.basicQos(10);
        BlockingQueue<Delivery> arrived = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, false, arguments, (DeliverCallback) (tag, delivery) -> arrived.add(delivery), NOT_CANCELLED);
        List<Delivery> got = new ArrayList<>();
        while (got.size() < count) {
            Delivery delivery = Checks.take(arrived, "message " + got.size() + " of " + queue);
            if (got.size() < acks) {
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            }
            got.add(delivery);
        }
        channel.close();
        return got;
    }

    /** Messages whose bodies are their offsets, from one offset on. */
    private static void inOrder(List<Delivery> got, long first) {
        long offset = first;
        for (Delivery delivery : got) {
            Checks.equal(delivery.getProperties().getHeaders().get("x-stream-offset"), offset, "x-stream-offset");
            Checks.equal(text(delivery.getBody()), Long.toString(offset), "body");
            offset++;
        }
    }

    private void streamIsReadFromAnOffset() throws Exception {
        String stream = streamWith(50);
        for (int time = 0; time < 2; time++) {
            inOrder(read(stream, 30, 30, Map.of("x-stream-offset", 20)), 20);
            inOrder(read(stream, 50, 50, Map.of("x-stream-offset", "first")), 0);
        }
        Date hourAgo = new Date(System.currentTimeMillis() - 3_600_000);
        inOrder(read(stream, 50, 50, Map.of("x-stream-offset", hourAgo)), 0);
        inOrder(read(stream, 50, 50, Map.of("x-stream-offset", "1h")), 0);
        Channel channel = connection.createChannel();
        channel.queueDelete(stream);
        channel.close();
    }

    private void groupGoesOnWhereItAcked() throws Exception {
        String stream = streamWith(50);
        String group = Checks.name("group");
        Channel channel = connection.createChannel();
        channel.queueDeclare(group, true, false, false,
                Map.of("x-queue-type", "stream-group", "x-stream", stream, "x-stream-offset", "first"));
        List<Delivery> got = read(group, 31, 30, Map.of());
        inOrder(got, 0);
        for (Delivery delivery : got) {
            Checks.equal(delivery.getProperties().getHeaders().get("x-stream").toString(), stream, "x-stream");
        }
        got = read(group, 20, 20, Map.of());
        inOrder(got, 30);
        Checks.that(got.get(0).getEnvelope().isRedeliver(), "what the first member held and had not acked is flagged");
        Checks.that(channel.basicGet(group, true) == null, "one more than was published");
        Checks.equal(channel.messageCount(group), 0L, "messages of the group");
        channel.queueDelete(group);
        channel.queueDelete(stream);
        channel.close();
    }

    private void requeuedComesBackRedelivered() throws Exception {
        Channel channel = confirming();
        String queue = temporaryQueue(channel, null);
        publish(channel, "", queue, "first");
        publish(channel, "", queue, "second");
        GetResponse first = getOne(channel, queue, false);
        Checks.equal(text(first.getBody()) + first.getEnvelope().isRedeliver(), "firstfalse", "get");
        channel.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
        GetResponse again = getOne(channel, queue, false);
        Checks.equal(text(again.getBody()) + again.getEnvelope().isRedeliver(), "firsttrue", "in its old place");
        channel.basicReject(again.getEnvelope().getDeliveryTag(), false);
        Checks.equal(getAll(channel, queue), List.of("second"), "after the reject");
        channel.close();
    }

    private void consumerIsToldOfTheQueuesEnd() throws Exception {
        Channel channel = connection.createChannel();
        Channel other = connection.createChannel();
        String queue = Checks.name("doomed");
        channel.queueDeclare(queue, false, false, false, null);
        BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
        String tag = channel.basicConsume(queue, false, (DeliverCallback) (ignored, delivery) -> { }, cancelled::add);
        other.queueDelete(queue);
        Checks.equal(Checks.take(cancelled, "basic.cancel"), tag, "consumer tag");
        channel.close();
        other.close();
    }

    private void directReplyToAnswers() throws Exception {
        Channel client = connection.createChannel();
        Channel server = connection.createChannel();
        String requests = temporaryQueue(server, null);
        server.basicConsume(requests, true, (DeliverCallback) (tag, request) -> server.basicPublish(
                "", request.getProperties().getReplyTo(), null, bytes("re: " + text(request.getBody()))), NOT_CANCELLED);
        BlockingQueue<String> answers = new LinkedBlockingQueue<>();
        client.basicConsume("amq.rabbitmq.reply-to", true,
                (DeliverCallback) (tag, answer) -> answers.add(text(answer.getBody())), NOT_CANCELLED);
        client.basicPublish("", requests,
                new AMQP.BasicProperties.Builder().replyTo("amq.rabbitmq.reply-to").build(), bytes("question"));
        Checks.equal(Checks.take(answers, "the answer"), "re: question", "answer");
        client.close();
        server.close();
    }

    // Contents

    private void propertiesComeBackAsSent() throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel, null);
        Map<String, Object> headers = new HashMap<>();
        headers.put("text", "größe");
        headers.put("int", -7);
        headers.put("long", 1L << 40);
        headers.put("short", (short) -3);
        headers.put("byte", (byte) -1);
        headers.put("float", 1.5f);
        headers.put("double", 2.5d);
        headers.put("yes", true);
        headers.put("none", null);
        headers.put("decimal", new BigDecimal("3.14"));
        headers.put("time", new Date(1_700_000_000_000L));
        headers.put("list", Arrays.asList(1, "two", Map.of("three", 3)));
        headers.put("table", Map.of("deep", Map.of("x", "y")));
        AMQP.BasicProperties sent = new AMQP.BasicProperties.Builder()
                .contentType("application/json").contentEncoding("utf-8").headers(headers).deliveryMode(2).priority(7)
                .correlationId("c-1").replyTo("r-1").expiration("60000").messageId("m-1")
                .timestamp(new Date(1_700_000_000_000L)).type("t-1").userId(factory.getUsername()).appId("a-1").build();
        channel.basicPublish("", queue, sent, new byte[0]);
        GetResponse got = getOne(channel, queue, true);
        Checks.equal(got.getBody().length, 0, "empty body");
        // LongString and String do not compare; their text does.
        Checks.equal(plain(got.getProps().getHeaders()), plain(headers), "headers");
        AMQP.BasicProperties without = got.getProps().builder().headers(null).build();
        Checks.equal(without, sent.builder().headers(null).build(), "properties");
        channel.close();
    }

    private static Object plain(Object value) {
        if (value instanceof LongString) {
            return value.toString();
        }
        if (value instanceof Map<?, ?> table) {
            Map<Object, Object> converted = new HashMap<>();
            table.forEach((key, one) -> converted.put(key, plain(one)));
            return converted;
        }
        if (value instanceof List<?> list) {
            List<Object> converted = new ArrayList<>();
            list.forEach(one -> converted.add(plain(one)));
            return converted;
        }
        return value;
    }

    private void largeMessageIsWhole() throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel, null);
        byte[] body = new byte[(1 << 20) + 5];
        for (int n = 0; n < body.length; n++) {
            body[n] = (byte) (n * 31);
        }
        channel.basicPublish("", queue, null, body);
        Checks.that(Arrays.equals(getOne(channel, queue, true).getBody(), body), "1 MiB came back changed");
        channel.close();
    }

    private void transactionsCommitAndRollBack() throws Exception {
        Channel channel = connection.createChannel();
        Channel other = connection.createChannel();
        String queue = temporaryQueue(channel, null);
        channel.txSelect();
        channel.basicPublish("", queue, null, bytes("rolled back"));
        channel.txRollback();
        channel.basicPublish("", queue, null, bytes("committed"));
        Checks.equal(other.messageCount(queue), 0L, "before the commit");
        channel.txCommit();
        Checks.equal(getAll(other, queue), List.of("committed"), "after the commit");
        channel.close();
        other.close();
    }

    // Errors

    /** The act closes its own channel with this code and text, and the connection stays open. */
    private void expectClose(int code, String part, Act act) throws Exception {
        Channel channel = connection.createChannel();
        BlockingQueue<ShutdownSignalException> closes = new LinkedBlockingQueue<>();
        channel.addShutdownListener(closes::add);
        try {
            act.on(channel);
        } catch (IOException | AlreadyClosedException closed) {
            Checks.that(signalOf(closed) != null, "not a broker's error: " + closed);
        }
        Method reason = Checks.take(closes, "channel close " + code).getReason();
        Checks.that(reason instanceof AMQP.Channel.Close, "a channel.close: " + reason);
        Checks.equal(((AMQP.Channel.Close) reason).getReplyCode(), code, "reply code");
        Checks.contains(((AMQP.Channel.Close) reason).getReplyText(), part);
        Channel fresh = connection.createChannel();
        temporaryQueue(fresh, null);
        fresh.close();
    }

    private void missingThingsGive404() throws Exception {
        String missing = Checks.name("missing");
        String noQueue = "NOT_FOUND - no queue '" + missing + "' in vhost '/'";
        String noExchange = "NOT_FOUND - no exchange '" + missing + "' in vhost '/'";
        expectClose(404, noQueue, channel -> channel.queueDeclarePassive(missing));
        expectClose(404, noQueue, channel -> channel.basicGet(missing, true));
        expectClose(404, noExchange, channel -> channel.exchangeDeclarePassive(missing));
        expectClose(404, noExchange, channel -> channel.basicPublish(missing, "", null, bytes("x")));
    }

    private void reservedNamesGive403() throws Exception {
        expectClose(403, "contains reserved prefix", channel -> channel.exchangeDeclare("amq.mine", "direct"));
        expectClose(403, "operation not permitted on the default exchange", channel -> {
            String queue = temporaryQueue(channel, null);
            channel.queueBind(queue, "", "key");
        });
    }

    private void otherConnectionsExclusiveQueueGives405() throws Exception {
        Connection other = factory.newConnection();
        String queue = temporaryQueue(other.createChannel(), null);
        expectClose(405, "exclusive access to locked queue '" + queue + "'", channel -> channel.queueDelete(queue));
        other.close();
    }

    private void disagreementGives406() throws Exception {
        Channel channel = connection.createChannel();
        String queue = Checks.name("agreed");
        channel.queueDeclare(queue, false, true, false, null);
        expectClose(406, "inequivalent arg 'auto_delete' for queue '" + queue
                + "' in vhost '/': received 'true' but current is 'false'",
                own -> own.queueDeclare(queue, false, true, true, null));
        expectClose(406, "unknown delivery tag 99", own -> own.basicAck(99, false));
        expectClose(406, "cannot switch from confirm to tx mode", own -> {
            own.confirmSelect();
            own.txSelect();
        });
        channel.close();
    }

    // Restart

    /** The client restores connection, channel, prefetch, exclusive queue, bindings and consumers by itself. */
    private void recoveryComesBackAfterARestart() throws Exception {
        Connection recovering = factory.newConnection();
        CountDownLatch recovered = new CountDownLatch(1);
        ((Recoverable) recovering).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recoverable) {
                recovered.countDown();
            }

            @Override
            public void handleRecoveryStarted(Recoverable recoverable) { }
        });
        Channel channel = recovering.createChannel();
        channel.confirmSelect();
        String exchange = Checks.name("durable-exchange");
        String queue = Checks.name("durable");
        channel.exchangeDeclare(exchange, "topic", true);
        channel.queueDeclare(queue, true, false, false, null);
        channel.queueBind(queue, exchange, "a.*");
        String exclusive = temporaryQueue(channel, null);
        channel.queueBind(exclusive, exchange, "b.*");
        Channel consuming = recovering.createChannel();
        consuming.basicQos(1);
        BlockingQueue<Delivery> arrived = new LinkedBlockingQueue<>();
        consuming.basicConsume(queue, false, (DeliverCallback) (tag, delivery) -> arrived.add(delivery), NOT_CANCELLED);
        BlockingQueue<Delivery> temporary = new LinkedBlockingQueue<>();
        consuming.basicConsume(exclusive, true, (DeliverCallback) (tag, delivery) -> temporary.add(delivery), NOT_CANCELLED);
        for (String number : numbers(50)) {
            publish(channel, exchange, "a.b", number);
        }
        Checks.equal(text(Checks.take(arrived, "a delivery").getBody()), "0", "held over the restart");
        Checks.restartBroker();
        Checks.that(recovered.await(Checks.RESTART_MS, TimeUnit.MILLISECONDS), "the client did not recover");
        for (String number : numbers(50)) {
            Delivery delivery = Checks.take(arrived, "delivery " + number + " after the restart");
            Checks.equal(text(delivery.getBody()), number, "order");
            if (number.equals("0")) {
                Checks.that(delivery.getEnvelope().isRedeliver(), "redelivered");
            }
            consuming.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }
        publish(channel, exchange, "b.c", "to the exclusive queue");
        Delivery last = Checks.take(temporary, "through the recovered binding");
        Checks.equal(text(last.getBody()), "to the exclusive queue", "recovered exclusive queue");
        channel.queueDelete(queue);
        channel.exchangeDelete(exchange);
        recovering.close();
    }
}
