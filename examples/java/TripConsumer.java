import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A Kafka consumer in Java: prints each cell of the column BASE, then commits the offsets.
 *
 * <p>Started again it goes on behind the last commit. A record without a value says that the row was erased.
 */
public final class TripConsumer {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", "java-example",
            "auto.offset.reset", "earliest",
            "enable.auto.commit", "false");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        try (consumer) {
            consumer.subscribe(List.of("trips.BASE"));
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    String value = record.value() == null ? "erased" : record.value();
                    System.out.println(record.partition() + "/" + record.offset() + " " + record.key() + " " + value);
                }
                consumer.commitSync();
            }
        } catch (WakeupException ended) {
            // Ctrl-C or SIGTERM: leave the group.
        }
    }
}
