import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.http.client.Client;
import com.rabbitmq.http.client.GetAckMode;
import com.rabbitmq.http.client.GetEncoding;
import com.rabbitmq.http.client.HttpClientException;
import com.rabbitmq.http.client.domain.BindingInfo;
import com.rabbitmq.http.client.domain.ChannelInfo;
import com.rabbitmq.http.client.domain.ConnectionInfo;
import com.rabbitmq.http.client.domain.ExchangeInfo;
import com.rabbitmq.http.client.domain.InboundMessage;
import com.rabbitmq.http.client.domain.NodeInfo;
import com.rabbitmq.http.client.domain.OutboundMessage;
import com.rabbitmq.http.client.domain.OverviewResponse;
import com.rabbitmq.http.client.domain.Page;
import com.rabbitmq.http.client.domain.PolicyInfo;
import com.rabbitmq.http.client.domain.QueryParameters;
import com.rabbitmq.http.client.domain.QueueInfo;
import com.rabbitmq.http.client.domain.ShovelDetails;
import com.rabbitmq.http.client.domain.ShovelInfo;
import com.rabbitmq.http.client.domain.TopicPermissions;
import com.rabbitmq.http.client.domain.UserInfo;
import com.rabbitmq.http.client.domain.UserPermissions;
import com.rabbitmq.http.client.domain.VhostInfo;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** RabbitMQ's Java client of the management API (hop). */
public final class Management {
    private static final String URL = Checks.environment("HTTP_URL", "http://guest:guest@127.0.0.1:15672");
    private static final String VHOST = "/";

    private final Client client = new Client(URL + "/api/");

    private Management() throws Exception { }

    public static void main(String[] arguments) throws Exception {
        Checks.limitTheProgram();
        Runtime.getRuntime().halt(new Management().checkAll(new Checks()));
    }

    private int checkAll(Checks checks) {
        checks.run("overview-and-nodes", this::overviewAndNodes);
        checks.run("connections-channels-and-consumers", this::connectionsChannelsAndConsumers);
        checks.run("queues-are-declared-paged-and-deleted", this::queuesAreDeclaredPagedAndDeleted);
        checks.run("bindings-and-messages", this::bindingsAndMessages);
        checks.run("users-and-permissions", this::usersAndPermissions);
        checks.run("vhosts-and-limits", this::vhostsAndLimits);
        checks.run("policies", this::policies);
        checks.run("shovels", this::shovels);
        checks.run("definitions", this::definitions);
        checks.run("refusals", this::refusals);
        return checks.finish();
    }

    /** Statistics come to RabbitMQ's API with a delay of seconds. */
    private static <T> T eventually(Callable<T> asked, String what) throws Exception {
        long end = System.currentTimeMillis() + Checks.WAIT_MS;
        while (System.currentTimeMillis() < end) {
            T found = asked.call();
            if (found != null) {
                return found;
            }
            Thread.sleep(100);
        }
        throw new Checks.CheckFailed("timed out: " + what);
    }

    private void overviewAndNodes() {
        OverviewResponse overview = client.getOverview();
        Checks.that(!overview.getServerVersion().isEmpty(), "a version");
        Checks.that(overview.getExchangeTypes().size() >= 4, "exchange types");
        Checks.that(
            overview.getListeners().stream().anyMatch(each -> each.getProtocol().equals("amqp")), "a listener");
        Checks.equal(client.whoAmI().getName(), "guest", "who I am");
        NodeInfo node = client.getNode(overview.getNode());
        Checks.that(node.isRunning() && node.isDiskNode(), "a running node");
        Checks.that(node.getMemoryUsed() > 0 && node.getDiskFree() > 0 && node.getUptime() > 0, "its figures");
        Checks.equal(client.getNodes().get(0).getName(), node.getName(), "the list of nodes");
        Checks.that(client.alivenessTest(VHOST), "aliveness");
        Checks.that(!client.getClusterName().getName().isEmpty(), "the cluster's name");
    }

    private void connectionsChannelsAndConsumers() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(Checks.AMQP_URL);
        factory.setAutomaticRecoveryEnabled(false);
        String given = Checks.name("connection");
        Connection connection = factory.newConnection(given);
        Channel channel = connection.createChannel();
        channel.basicQos(7);
        String queue = channel.queueDeclare().getQueue();
        channel.basicConsume(queue, false, "hop", (tag, message) -> { }, tag -> { });
        ConnectionInfo found = eventually(() -> client.getConnections().stream()
            .filter(each -> each.getClientProperties() != null
                && given.equals(each.getClientProperties().getConnectionName()))
            .findAny().orElse(null), "the connection");
        Checks.equal(found.getUser(), "guest", "its user");
        Checks.that(found.getPeerPort() > 0 && found.getConnectedAt() > 0, "its figures");
        Checks.equal(client.getConnection(found.getName()).getFrameMax(), found.getFrameMax(), "one connection");
        ChannelInfo its = eventually(() -> client.getChannels(found.getName()).stream()
            .filter(each -> each.getConsumerCount() == 1).findAny().orElse(null), "its channel");
        Checks.equal(client.getChannel(its.getName()).getConnectionDetails().getName(), found.getName(), "one channel");
        eventually(() -> client.getConsumers(VHOST).stream()
            .filter(each -> each.getConsumerTag().equals("hop")
                && each.getQueueDetails().getName().equals(queue) && each.getPrefetchCount() == 7)
            .findAny().orElse(null), "the consumer");
        client.closeConnection(found.getName(), "hop has closed it");
        eventually(() -> connection.isOpen() ? null : true, "the end of the connection");
        Checks.contains(connection.getCloseReason().getMessage(), "hop has closed it");
    }

    private void queuesAreDeclaredPagedAndDeleted() throws Exception {
        String prefix = Checks.name("paged");
        for (int number = 0; number < 3; number++) {
            client.declareQueue(VHOST, prefix + number,
                new QueueInfo(true, false, false, Map.of("x-max-length", 5)));
        }
        Page<QueueInfo> page = client.getQueues(VHOST,
            new QueryParameters().name("^" + prefix.replace(".", "\\."), true).pagination().pageSize(2).query());
        Checks.equal(page.getFilteredCount(), 3, "queues that match");
        Checks.equal(page.getItemsAsList().size(), 2, "queues of a page");
        QueueInfo one = client.getQueue(VHOST, prefix + 0);
        Checks.that(one.isDurable(), "durable");
        Checks.equal(one.getArguments().get("x-max-length"), 5, "its argument");
        Checks.equal(one.getType(), "classic", "its type");
        for (int number = 0; number < 3; number++) {
            client.purgeQueue(VHOST, prefix + number);
            client.deleteQueue(VHOST, prefix + number);
        }
        Checks.equal(client.getQueue(VHOST, prefix + 0), null, "a queue that is gone");
    }

    private void bindingsAndMessages() {
        String exchange = Checks.name("exchange");
        String queue = Checks.name("bound");
        client.declareExchange(VHOST, exchange, new ExchangeInfo("topic", true, false));
        client.declareQueue(VHOST, queue, new QueueInfo(true, false, false));
        client.bindQueue(VHOST, queue, exchange, "a/#", Map.of("x", 1));
        client.bindQueue(VHOST, queue, exchange, "routed");
        client.bindExchange(VHOST, "amq.fanout", exchange, "k");
        List<BindingInfo> bindings = client.getQueueBindingsBetween(VHOST, exchange, queue);
        Checks.equal(bindings.size(), 2, "bindings");
        Checks.equal(client.getBindingsBySource(VHOST, exchange).size(), 3, "bindings of the exchange");
        OutboundMessage message = new OutboundMessage().payload("größe").utf8Encoded()
            .properties(Map.of("app_id", "hop", "headers", Map.of("n", 1)));
        Checks.that(client.publish(VHOST, exchange, "routed", message), "routed");
        Checks.that(!client.publish(VHOST, exchange, "b", message), "not routed");
        InboundMessage got =
            client.get(VHOST, queue, 1, GetAckMode.ACK_REQUEUE_FALSE, GetEncoding.AUTO).get(0);
        Checks.equal(got.getPayload(), "größe", "payload");
        Checks.equal(got.getProperties().get("app_id"), "hop", "a property");
        Checks.equal(client.get(VHOST, queue), null, "a message too many");
        client.unbindQueue(VHOST, queue, exchange, "routed");
        client.unbindExchange(VHOST, "amq.fanout", exchange, "k");
        Checks.equal(client.getBindingsBySource(VHOST, exchange).size(), 1, "bindings that are left");
        client.deleteQueue(VHOST, queue);
        client.deleteExchange(VHOST, exchange);
        Checks.equal(client.getExchange(VHOST, exchange), null, "an exchange that is gone");
    }

    private void usersAndPermissions() {
        String name = Checks.name("user");
        client.createUser(name, "secret".toCharArray(), List.of("monitoring", "management"));
        UserInfo user = client.getUser(name);
        Checks.equal(user.getTags(), List.of("monitoring", "management"), "tags");
        client.updatePermissions(VHOST, name, new UserPermissions("a", "b", "c"));
        UserPermissions permissions = client.getPermissions(VHOST, name);
        Checks.equal(
            List.of(permissions.getRead(), permissions.getWrite(), permissions.getConfigure()),
            List.of("a", "b", "c"), "permissions");
        client.updateTopicPermissions(VHOST, name, new TopicPermissions("amq.topic", "r", "w"));
        Checks.equal(client.getTopicPermissions(VHOST, name).get(0).getWrite(), "w", "topic permissions");
        client.clearTopicPermissions(VHOST, name);
        Checks.equal(client.getTopicPermissions(VHOST, name), null, "topic permissions that are gone");
        client.clearPermissions(VHOST, name);
        client.deleteUser(name);
        Checks.equal(client.getUser(name), null, "a user that is gone");
    }

    private void vhostsAndLimits() {
        String name = Checks.name("vhost");
        client.createVhost(name, true, "of hop", "a", "b");
        VhostInfo vhost = client.getVhost(name);
        Checks.that(vhost.isTracing(), "tracing");
        Checks.equal(vhost.getDescription(), "of hop", "description");
        Checks.equal(vhost.getTags(), List.of("a", "b"), "tags");
        Checks.that(vhost.getClusterState().containsValue("running"), "state");
        client.limitMaxNumberOfQueues(name, 3);
        client.limitMaxNumberOfConnections(name, 4);
        Checks.equal(client.getVhostLimits(name).getMaxQueues(), 3, "limit of queues");
        Checks.equal(client.getVhostLimits(name).getMaxConnections(), 4, "limit of connections");
        client.clearMaxQueuesLimit(name);
        client.clearMaxConnectionsLimit(name);
        Checks.equal(client.getVhostLimits(name).getMaxQueues(), -1, "no limit");
        client.deleteVhost(name);
        Checks.equal(client.getVhost(name), null, "a vhost that is gone");
    }

    private void policies() {
        String name = Checks.name("policy");
        Map<String, Object> limit = Map.of("max-length", 9);
        client.declarePolicy(VHOST, name, new PolicyInfo("^nothing", 3, "queues", limit));
        client.declareOperatorPolicy(VHOST, name, new PolicyInfo("^nothing", 4, "queues", limit));
        PolicyInfo policy = client.getPolicies(VHOST).stream()
            .filter(each -> each.getName().equals(name)).findAny().orElseThrow();
        Checks.equal(policy.getPriority(), 3, "priority");
        Checks.equal(policy.getDefinition().get("max-length"), 9, "definition");
        Checks.that(client.getOperatorPolicies().stream().anyMatch(each -> each.getName().equals(name)),
            "the operator policy");
        client.deletePolicy(VHOST, name);
        client.deleteOperatorPolicy(VHOST, name);
    }

    private void shovels() throws Exception {
        String name = Checks.name("shovel");
        ShovelDetails details = new ShovelDetails("amqp://", "amqp://", 1, false, null);
        details.setSourceQueue(Checks.name("from"));
        details.setDestinationQueue(Checks.name("to"));
        client.declareShovel(VHOST, new ShovelInfo(name, details));
        Checks.that(client.getShovels(VHOST).stream().anyMatch(each -> each.getName().equals(name)), "the shovel");
        eventually(() -> client.getShovelsStatus(VHOST).stream()
            .filter(each -> each.getName().equals(name) && each.getState().equals("running"))
            .findAny().orElse(null), "a shovel that runs");
        client.deleteShovel(VHOST, name);
        client.deleteQueue(VHOST, Checks.name("from"));
        client.deleteQueue(VHOST, Checks.name("to"));
    }

    private void definitions() {
        Checks.that(
            client.getDefinitions().getUsers().stream().anyMatch(each -> each.getName().equals("guest")), "users");
    }

    private void refusals() throws Exception {
        try {
            client.declareQueue(VHOST, "amq.mine", new QueueInfo(true, false, false));
            throw new Checks.CheckFailed("a reserved name was declared");
        } catch (HttpClientException refused) {
            Checks.that(refused.status() == 401 || refused.status() == 403 || refused.status() == 400,
                "status " + refused.status());
        }
        Client wrong = new Client(URL.replace("guest:guest@", "guest:wrong@") + "/api/");
        try {
            wrong.getOverview();
            throw new Checks.CheckFailed("a wrong password was taken");
        } catch (HttpClientException refused) {
            Checks.equal(refused.status(), 401, "status of a wrong password");
        }
    }
}
