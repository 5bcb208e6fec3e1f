import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Random;

/** A member that uses RabbitMQ's Java client, again and again. */
public final class Member {
    private static final String GROUP = System.getenv("STORM_GROUP");
    private static final String NAME = System.getenv("STORM_NAME");
    private static final Random CHANCE = new Random(System.getenv("STORM_SEED").hashCode());
    private static FileOutputStream record;
    private static int sessions;

    private final String name = NAME + "." + ++sessions;
    private final Deque<Object[]> held = new ArrayDeque<>();
    private int deliveries;
    private volatile boolean lost;
    private boolean joined;
    private boolean ended;

    private static boolean ends() {
        return Files.exists(Path.of(System.getenv("STORM_END")));
    }

    private static int choose(int... options) {
        return options[CHANCE.nextInt(options.length)];
    }

    private void tell(Object... words) throws IOException {
        StringBuilder line = new StringBuilder(name);
        for (Object word : words) {
            line.append(' ').append(word);
        }
        record.write(line.append('\n').toString().getBytes(StandardCharsets.UTF_8));
    }

    private synchronized void end(String word) throws IOException {
        if (joined && !ended) {
            ended = true;
            tell(word);
        }
    }

    private synchronized void take(Envelope envelope, AMQP.BasicProperties properties) throws IOException {
        if (ended) {
            return;
        }
        Object partition = properties.getHeaders().get("x-stream") + "@" + properties.getHeaders().get("epoch");
        Object offset = properties.getHeaders().get("x-stream-offset");
        Object count = properties.getHeaders().getOrDefault("x-delivery-count", 0);
        tell("d", partition, offset, envelope.isRedeliver() ? "again" : "new", count);
        deliveries++;
        held.add(new Object[] {envelope.getDeliveryTag(), partition, offset});
    }

    private synchronized void settle(Channel channel, boolean all) throws IOException {
        while (!held.isEmpty() && (all || CHANCE.nextDouble() < 0.9)) {
            Object[] each = held.remove();
            if (!all && CHANCE.nextDouble() < 0.04) {
                tell("r", each[1], each[2]);
                channel.basicNack((Long) each[0], false, true);
            } else {
                tell("a", each[1], each[2]);
                channel.basicAck((Long) each[0], false);
            }
        }
    }

    private void visit() throws Exception {
        String[] urls = Files.readString(Path.of(System.getenv("STORM_URLS"))).trim().split("\n");
        String url = urls[CHANCE.nextInt(urls.length)];
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        // From the path "/" the factory takes a vhost with an empty name.
        factory.setVirtualHost("/");
        factory.setAutomaticRecoveryEnabled(false);
        factory.setRequestedHeartbeat(Integer.parseInt(System.getenv("STORM_HEARTBEAT")));
        factory.setConnectionTimeout(20000);
        Connection connection = factory.newConnection();
        try {
            Channel channel = connection.createChannel();
            channel.basicQos(choose(1, 10, 100));
            joined = true;
            tell("join", URI.create(url).getPort());
            String tag = channel.basicConsume(GROUP, false, new DefaultConsumer(channel) {
                @Override
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                        throws IOException {
                    take(envelope, properties);
                }

                @Override
                public void handleCancel(String tag) {
                    lost = true;
                }

                @Override
                public void handleShutdownSignal(String tag, ShutdownSignalException signal) {
                    lost = true;
                }
            });
            int most = choose(5, 50, 500);
            long until = System.currentTimeMillis() + choose(1000, 3000, 10000);
            while (!ends() && deliveries < most && System.currentTimeMillis() < until && !lost) {
                settle(channel, false);
                Thread.sleep(10);
            }
            if (lost) {
                return;
            }
            channel.basicCancel(tag);
            settle(channel, true);
            tell("q");
            channel.queueDeclarePassive(GROUP);
            tell("c");
            tell("closing");
            connection.close();
            end("leave");
        } finally {
            end("gone");
            connection.abort(5000);
        }
    }

    public static void main(String[] arguments) throws Exception {
        record = new FileOutputStream(System.getenv("STORM_RECORD"), true);
        while (!ends()) {
            try {
                new Member().visit();
            } catch (IOException | ShutdownSignalException | java.util.concurrent.TimeoutException error) {
                System.err.println(NAME + " " + error);
                Thread.sleep(100);
            }
        }
        Runtime.getRuntime().halt(0);
    }
}
