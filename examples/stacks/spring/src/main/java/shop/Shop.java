package shop;

import java.util.Map;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

/**
 * Spring AMQP on a quorum queue, acked when the listener has ended.
 *
 * <pre>
 * mvn package
 * java -jar target/shop.jar
 * java -jar target/shop.jar order-7
 * </pre>
 */
@SpringBootApplication
public class Shop {
  private static final long CONFIRM_MS = 10_000;

  public static void main(String[] args) {
    SpringApplication app = new SpringApplication(Shop.class);
    boolean works = args.length == 0;
    app.setDefaultProperties(Map.of("spring.rabbitmq.listener.simple.auto-startup", works));
    var context = app.run();
    if (!works) {
      try (context) {
        context.getBean(Shop.class).order(context.getBean(RabbitTemplate.class), args[0]);
      }
    }
  }

  /** Declared at the first connection. A message whose listener has failed six times is dropped, or dead-lettered. */
  @Bean
  Queue orders() {
    return QueueBuilder.durable("orders").quorum().deliveryLimit(5).build();
  }

  @RabbitListener(queues = "orders")
  void bill(String order) {
    System.out.println("billed " + order);
  }

  /** Publish, and return when the broker has the message on disk. */
  void order(RabbitTemplate template, String name) {
    template.invoke(
        operations -> {
          operations.convertAndSend("orders", name);
          operations.waitForConfirmsOrDie(CONFIRM_MS);
          return null;
        });
  }
}
