import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The clients of two scenarios, with Kafka's own library. Lines on standard output say when the measured time begins and ends;
 * the last one has the figures.
 */
final class Load {
    private static final int BODY_BYTES = 128;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long STALL_NS = 30_000_000_000L;

    private Load() {}

    public static void main(String[] arguments) throws Exception {
        String server = arguments[1];
        double warmS = Double.parseDouble(arguments[2]), runS = Double.parseDouble(arguments[3]);
        String topic = arguments[4];
        int number = Integer.parseInt(arguments[5]);
        switch (arguments[0]) {
            case "transactions" -> transactions(server, warmS, runS, topic, number, Integer.parseInt(arguments[6]));
            case "latency" -> latency(server, warmS, runS, topic, number);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static Properties common(String server) {
        Properties found = new Properties();
        found.put("bootstrap.servers", server);
        return found;
    }

    private static KafkaProducer<byte[], byte[]> producer(Properties settings) {
        settings.put("acks", "all");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Properties settings, TopicPartition from) {
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        KafkaConsumer<byte[], byte[]> made =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        made.assign(List.of(from));
        return made;
    }

    /**
     * Half of the clients move messages from one of two topics to the other, each from a partition of its own, as many move them
     * back.
     */
    private static void transactions(String server, double warmS, double runS, String topics, int clients, int size)
        throws Exception {
        AtomicLong moved = new AtomicLong();
        AtomicReference<Exception> failure = new AtomicReference<>();
        for (int client = 0; client < clients; client++) {
            String source = topics + "-" + client % 2, target = topics + "-" + (1 - client % 2);
            int partition = client / 2;
            fill(server, source, partition, 5 * size);
            Thread thread = new Thread(() -> {
                try {
                    move(server, new TopicPartition(source, partition), target, size, moved);
                } catch (Exception failed) {
                    failure.set(failed);
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        Thread.sleep((long) (warmS * 1000));
        long before = moved.get(), began = System.nanoTime();
        System.out.println("began");
        Thread.sleep((long) (runS * 1000));
        double rate = (moved.get() - before) / ((System.nanoTime() - began) / 1e9);
        System.out.println("ended " + (moved.get() - before));
        if (failure.get() != null) {
            throw failure.get();
        }
        System.out.println("rate=" + rate);
        System.exit(0);
    }

    private static void fill(String server, String topic, int partition, int count) {
        try (KafkaProducer<byte[], byte[]> filling = producer(common(server))) {
            for (int number = 0; number < count; number++) {
                filling.send(new ProducerRecord<>(topic, partition, null, new byte[BODY_BYTES]));
            }
        }
    }

    private static void move(String server, TopicPartition from, String target, int size, AtomicLong moved) {
        Properties settings = common(server);
        settings.put("transactional.id", "mover-" + from);
        KafkaProducer<byte[], byte[]> producer = producer(settings);
        producer.initTransactions();
        settings = common(server);
        settings.put("group.id", "movers-" + from);
        settings.put("isolation.level", "read_committed");
        settings.put("max.poll.records", String.valueOf(size));
        KafkaConsumer<byte[], byte[]> consumer = consumer(settings, from);
        List<ConsumerRecord<byte[], byte[]>> taken = new ArrayList<>();
        while (true) {
            for (ConsumerRecord<byte[], byte[]> each : consumer.poll(POLL)) {
                taken.add(each);
            }
            while (taken.size() >= size) {
                List<ConsumerRecord<byte[], byte[]>> part = taken.subList(0, size);
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> each : part) {
                    producer.send(new ProducerRecord<>(target, from.partition(), null, each.value()));
                }
                OffsetAndMetadata next = new OffsetAndMetadata(part.get(size - 1).offset() + 1);
                producer.sendOffsetsToTransaction(Map.of(from, next), consumer.groupMetadata());
                producer.commitTransaction();
                moved.addAndGet(size);
                part.clear();
            }
        }
    }

    /** Each message is due at a fixed time, from which its latency counts, until a consumer has it and until it is acknowledged. */
    private static void latency(String server, double warmS, double runS, String name, int rate) throws Exception {
        int warm = (int) (rate * warmS), total = warm + (int) (rate * runS);
        long[] delivered = new long[total], confirmed = new long[total];
        TopicPartition topic = new TopicPartition(name, 0);
        Properties settings = common(server);
        settings.put("linger.ms", "0");
        KafkaConsumer<byte[], byte[]> consumer = consumer(common(server), topic);
        KafkaProducer<byte[], byte[]> producer = producer(settings);
        AtomicReference<Exception> failure = new AtomicReference<>();
        producer.send(new ProducerRecord<>(topic.topic(), 0, null, mark(-1, 0))).get();
        while (consumer.poll(POLL).isEmpty()) {
        }
        Thread reading = new Thread(() -> {
            int seen = 0;
            long gaveUp = System.nanoTime() + (long) ((warmS + runS) * 1e9) + STALL_NS;
            while (seen < total && System.nanoTime() < gaveUp) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(POLL)) {
                    ByteBuffer read = ByteBuffer.wrap(each.value());
                    delivered[read.getInt()] = System.nanoTime() - read.getLong();
                    seen++;
                }
            }
            if (seen < total) {
                failure.set(new IllegalStateException(seen + " of " + total + " messages came"));
            }
        });
        reading.start();
        long first = System.nanoTime() + 50_000_000L;
        for (int number = 0; number < total; number++) {
            if (number == warm) {
                System.out.println("began");
            }
            long due = first + (long) (number * 1e9 / rate);
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                Thread.sleep(left / 1_000_000L, (int) (left % 1_000_000L));
            }
            int at = number;
            producer.send(new ProducerRecord<>(topic.topic(), 0, null, mark(number, due)), (told, failed) -> {
                confirmed[at] = System.nanoTime() - due;
                if (failed != null) {
                    failure.set(failed);
                }
            });
        }
        producer.flush();
        reading.join();
        System.out.println("ended " + (total - warm));
        if (failure.get() != null) {
            throw new ExecutionException(failure.get());
        }
        System.out.println(percentiles("delivery", delivered, warm) + " " + percentiles("confirm", confirmed, warm));
        System.exit(0);
    }

    private static byte[] mark(int number, long due) {
        return ByteBuffer.allocate(BODY_BYTES).putInt(number).putLong(due).array();
    }

    private static String percentiles(String what, long[] found, int warm) {
        long[] sorted = java.util.Arrays.copyOfRange(found, warm, found.length);
        java.util.Arrays.sort(sorted);
        double p50 = sorted[sorted.length / 2] / 1e6, p99 = sorted[(int) (sorted.length * 0.99)] / 1e6;
        return what + "_p50_ms=" + p50 + " " + what + "_p99_ms=" + p99;
    }
}
