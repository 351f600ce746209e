import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The Java client; ../README.md says what a driver is asked and what it answers. */
public final class JavaClient {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Duration COMMIT_TIMEOUT = Duration.ofSeconds(5);
    private static final long LAST_COMMITS_MS = 60_000;
    private static final PrintStream OUT = new PrintStream(new BufferedOutputStream(System.out), false, StandardCharsets.UTF_8);

    private final String bootstrap;
    private final String topic;

    private JavaClient(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
    }

    public static void main(String[] words) throws Exception {
        JavaClient client = new JavaClient(words[1], words[2]);
        switch (words[0]) {
            case "assign" -> client.assign(Integer.parseInt(words[3]), Integer.parseInt(words[4]));
            case "group" -> client.group(words[3], Integer.parseInt(words[4]));
            case "produce" -> client.produce(false);
            case "transaction" -> client.produce(true);
            default -> throw new IllegalArgumentException(words[0]);
        }
        OUT.flush();
        System.exit(0);
    }

    private KafkaConsumer<String, String> consumer(String group, int count) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        if (group != null) {
            settings.put("group.id", group);
        }
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", "10000");
        settings.put("heartbeat.interval.ms", "1000");
        settings.put("max.poll.records", String.valueOf(count == 0 ? 500 : Math.min(count, 500)));
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private void assign(int partitions, int count) {
        try (KafkaConsumer<String, String> consumer = consumer(null, count)) {
            List<TopicPartition> all = IntStream.range(0, partitions).mapToObj(each -> new TopicPartition(topic, each)).collect(Collectors.toList());
            consumer.assign(all);
            consumer.seekToBeginning(all);
            int left = count;
            while (left > 0) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    if (left-- > 0) {
                        tellRecord(record);
                    }
                }
            }
        }
    }

    private void group(String group, int count) throws Exception {
        Thread stdin = new Thread(JavaClient::readStdin);
        stdin.setDaemon(true);
        stdin.start();
        Map<TopicPartition, OffsetAndMetadata> behind = new HashMap<>();
        try (KafkaConsumer<String, String> consumer = consumer(group, count)) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    behind.clear();
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    behind.clear();
                    String given = partitions.stream().map(each -> String.valueOf(each.partition())).collect(Collectors.joining(","));
                    tell("{\"event\":\"assigned\",\"partitions\":[" + given + "]}");
                }
            });
            int left = count;
            while (stdin.isAlive() && (left > 0 || count == 0)) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    if (count == 0 || left > 0) {
                        tellRecord(record);
                        behind.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                        left--;
                    }
                }
                commit(consumer, behind);
            }
            long deadlineMs = System.currentTimeMillis() + LAST_COMMITS_MS;
            while (!behind.isEmpty() && System.currentTimeMillis() < deadlineMs) {
                Thread.sleep(200);
                commit(consumer, behind);
            }
        }
    }

    private static void commit(KafkaConsumer<String, String> consumer, Map<TopicPartition, OffsetAndMetadata> behind) {
        if (behind.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(behind, COMMIT_TIMEOUT);
        } catch (KafkaException error) {
            System.err.println("commit: " + error);
            return;
        }
        String offsets = behind.entrySet().stream()
            .map(each -> "\"" + each.getKey().partition() + "\":" + each.getValue().offset()).collect(Collectors.joining(","));
        tell("{\"event\":\"committed\",\"offsets\":{" + offsets + "}}");
        behind.clear();
    }

    private void produce(boolean inTransaction) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.idempotence", String.valueOf(inTransaction));
        if (inTransaction) {
            settings.put("transactional.id", "transactions");
        }
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        try {
            if (inTransaction) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            producer.send(new ProducerRecord<>(topic, "value")).get();
            tell("{\"event\":\"written\"}");
        } catch (KafkaException | java.util.concurrent.ExecutionException error) {
            tell("{\"event\":\"refused\",\"error\":" + quoted(error.toString()) + "}");
        }
    }

    private static void readStdin() {
        try {
            System.in.readAllBytes();
        } catch (java.io.IOException error) {
            System.err.println("stdin: " + error);
        }
    }

    private static void tellRecord(ConsumerRecord<String, String> record) {
        OUT.println("{\"event\":\"record\",\"partition\":" + record.partition() + ",\"offset\":" + record.offset()
            + ",\"key\":" + quoted(record.key()) + ",\"value\":" + quoted(record.value()) + "}");
    }

    private static void tell(String line) {
        OUT.println(line);
        OUT.flush();
    }

    private static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < ' ') {
                quoted.append(String.format("\\u%04x", (int) each));
            } else {
                quoted.append(each);
            }
        }
        return quoted.append('"').toString();
    }
}
