package main

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v2"
	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbit-hole, RabbitMQ's Go client of the management API, also called as Terraform's provider calls it: each
// object is read again after each change, and a binding is identified by the key at the end of its location.

const slash = "/"

func managementChecks() []check {
	return []check{
		{"overview-and-nodes", overviewAndNodes, false, false},
		{"health-checks", healthChecks, false, false},
		{"connections-channels-and-consumers", connectionsChannelsAndConsumers, false, false},
		{"queues-are-declared-paged-and-deleted", queuesAreDeclaredPagedAndDeleted, false, false},
		{"exchanges-and-bindings", exchangesAndBindings, false, false},
		{"users-and-permissions", usersAndPermissions, false, false},
		{"vhosts-and-limits", vhostsAndLimits, false, false},
		{"policies", policies, false, false},
		{"shovels", shovels, false, false},
		{"parameters", parameters, false, false},
		{"definitions", definitions, false, false},
		{"refusals", refusals, false, false},
	}
}

func manager() *rabbithole.Client {
	address := must(url.Parse(httpURL))
	password, _ := address.User.Password()
	return must(rabbithole.NewClient("http://"+address.Host, address.User.Username(), password))
}

func amqpPort() int {
	port := must(url.Parse(amqpURL)).Port()
	if port == "" {
		return 5672
	}
	return must(strconv.Atoi(port))
}

// done says whether a change was made, and whether it was a new one.
func done(response *http.Response, err error, status int) {
	ok(err, "change")
	equal(response.StatusCode, status, "status")
}

func missing[T any](_ T, err error) { answered(err, 404, "") }

func answered(err error, status int, part string) {
	var answer rabbithole.ErrorResponse
	if !errors.As(err, &answer) {
		fail("not refused: %v", err)
	}
	equal(answer.StatusCode, status, "status")
	contains(answer.Reason, part)
}

// eventually waits for values that RabbitMQ's statistics show after some seconds.
func eventually[T any](what string, ask func() (T, bool)) T {
	for end := time.Now().Add(waitTime); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if found, is := ask(); is {
			return found
		}
	}
	fail("timed out: %s", what)
	panic("unreachable")
}

func overviewAndNodes() {
	client := manager()
	overview := must(client.Overview())
	if overview.Node == "" || overview.RabbitMQVersion == "" || len(overview.ExchangeTypes) < 4 {
		fail("overview: %+v", overview)
	}
	equal(int(must(client.ProtocolPorts())["amqp"]), amqpPort(), "port")
	contains(strings.Join(must(client.EnabledProtocols()), " "), "amqp")
	nodes := must(client.ListNodes())
	if len(nodes) != 1 || !nodes[0].IsRunning || nodes[0].MemUsed <= 0 || nodes[0].FdTotal <= 0 {
		fail("nodes: %+v", nodes)
	}
	equal(must(client.GetNode(overview.Node)).Name, overview.Node, "node")
	equal(must(client.Whoami()).Name, "guest", "who I am")
	equal(must(client.GetClusterName()).Name != "", true, "name of the cluster")
	if len(must(client.ListFeatureFlags())) == 0 {
		fail("no feature flags")
	}
}

func healthChecks() {
	client := manager()
	alarms, local := must(client.HealthCheckAlarms()), must(client.HealthCheckLocalAlarms())
	port := must(client.HealthCheckPortListener(uint(amqpPort())))
	protocol, vhosts := must(client.HealthCheckProtocolListener(rabbithole.AMQP)), must(client.HealthCheckVirtualHosts())
	quorum := must(client.HealthCheckNodeIsQuorumCritical())
	equal(alarms.Ok() && local.Ok() && port.Ok() && protocol.Ok() && vhosts.Ok() && quorum.Ok(), true, "healthy")
	unused, err := client.HealthCheckPortListener(1)
	ok(err, "check of an unused port")
	equal(unused.Ok(), false, "an unused port is listened on")
}

func connectionsChannelsAndConsumers() {
	client := manager()
	ours := must(amqp.DialConfig(amqpURL, amqp.Config{Properties: amqp.Table{"connection_name": name("managed")}}))
	defer ours.Close()
	channel := must(ours.Channel())
	queue := temporaryQueue(channel, nil)
	must(channel.Consume(queue, name("tag"), false, false, false, false, nil))
	shown := eventually("the connection", func() (rabbithole.ConnectionInfo, bool) {
		for _, each := range must(client.ListConnections()) {
			if each.ClientProperties["connection_name"] == name("managed") {
				return each, true
			}
		}
		return rabbithole.ConnectionInfo{}, false
	})
	equal([]string{shown.Vhost, shown.User, shown.Protocol}, []string{slash, "guest", "AMQP 0-9-1"}, "connection")
	equal(must(client.GetConnection(shown.Name)).PeerPort, shown.PeerPort, "port of the peer")
	one := eventually("the channel", func() (*rabbithole.ChannelInfo, bool) {
		one, err := client.GetChannel(shown.Name + " (1)")
		return one, err == nil && one.ConsumerCount == 1
	})
	equal(one.ConnectionDetails.Name, shown.Name, "connection of the channel")
	eventually("the consumer", func() (bool, bool) {
		for _, each := range must(client.ListConsumersIn(slash)) {
			if each.ConsumerTag == name("tag") {
				equal(each.Queue.Name, queue, "queue of the consumer")
				return true, true
			}
		}
		return false, false
	})
	closed := ours.NotifyClose(make(chan *amqp.Error, 1))
	_, err := client.CloseConnection(shown.Name)
	ok(err, "close")
	reason := receive(closed, "connection.close")
	equal(reason.Code, 320, "code")
	equal(reason.Reason, "CONNECTION_FORCED - Closed via management plugin", "text")
}

func queuesAreDeclaredPagedAndDeleted() {
	client := manager()
	for _, kind := range []string{"classic", "quorum", "stream"} {
		queue := name(kind)
		settings := rabbithole.QueueSettings{Durable: true, Arguments: map[string]interface{}{"x-queue-type": kind}}
		response, err := client.DeclareQueue(slash, queue, settings)
		done(response, err, 201)
		response, err = client.DeclareQueue(slash, queue, settings)
		done(response, err, 204)
		found := must(client.GetQueue(slash, queue))
		equal([]interface{}{found.Name, found.Vhost, found.Type, found.Durable, bool(found.AutoDelete), found.Arguments},
			[]interface{}{queue, slash, kind, true, false, map[string]interface{}{"x-queue-type": kind}}, "queue")
	}
	query := url.Values{"page": {"1"}, "page_size": {"2"}, "use_regex": {"true"}}
	query.Set("name", "^"+strings.ReplaceAll(prefix, ".", "[.]"))
	page := must(client.PagedListQueuesWithParametersIn(slash, query))
	equal([]int{page.PageCount, page.FilteredCount, len(page.Items)}, []int{2, 3, 2}, "page")
	channel := openChannel()
	publish(confirming(), "", name("classic"), text("body"))
	eventually("a message", func() (bool, bool) {
		return true, must(client.GetQueue(slash, name("classic"))).Messages == 1
	})
	response, err := client.PurgeQueue(slash, name("classic"))
	done(response, err, 204)
	equal(ready(channel, name("classic")), 0, "messages that are left")
	_, err = client.DeclareQueue(slash, name("classic"), rabbithole.QueueSettings{Durable: false})
	answered(err, 400, "inequivalent arg 'durable' for queue '"+name("classic")+"' in vhost '/'")
	for _, kind := range []string{"classic", "quorum", "stream"} {
		response, err = client.DeleteQueue(slash, name(kind))
		done(response, err, 204)
		missing(client.GetQueue(slash, name(kind)))
	}
}

func exchangesAndBindings() {
	client := manager()
	source, other, queue := name("source"), name("other"), name("a/b c")
	alternate := map[string]interface{}{"alternate-exchange": other}
	for _, exchange := range []string{source, other} {
		settings := rabbithole.ExchangeSettings{Type: "topic", Durable: true, Arguments: alternate}
		response, err := client.DeclareExchange(slash, exchange, settings)
		done(response, err, 201)
		equal(must(client.GetExchange(slash, exchange)).Arguments, alternate, "arguments")
	}
	must(client.DeclareQueue(slash, queue, rabbithole.QueueSettings{Durable: true}))
	for _, key := range []string{"", "#", "a/b", "a b+c%d.é"} {
		for _, arguments := range []map[string]interface{}{{}, {"a": "b c", "n": float64(3)}} {
			bind(client, rabbithole.BindingInfo{Source: source, Vhost: slash, Destination: queue,
				DestinationType: "queue", RoutingKey: key, Arguments: arguments})
			bind(client, rabbithole.BindingInfo{Source: source, Vhost: slash, Destination: other,
				DestinationType: "exchange", RoutingKey: key, Arguments: arguments})
		}
	}
	for _, exchange := range []string{source, other} {
		response, err := client.DeleteExchange(slash, exchange)
		done(response, err, 204)
		missing(client.GetExchange(slash, exchange))
	}
	response, err := client.DeleteQueue(slash, queue)
	done(response, err, 204)
}

func bind(client *rabbithole.Client, wanted rabbithole.BindingInfo) {
	between := func() *rabbithole.BindingInfo {
		list := client.ListQueueBindingsBetween
		if wanted.DestinationType == "exchange" {
			list = client.ListExchangeBindingsBetween
		}
		for _, each := range must(list(slash, wanted.Source, wanted.Destination)) {
			if each.PropertiesKey == wanted.PropertiesKey {
				return &each
			}
		}
		return nil
	}
	response, err := client.DeclareBinding(slash, wanted)
	done(response, err, 201)
	location := response.Header.Get("Location")
	wanted.PropertiesKey = must(url.PathUnescape(location[strings.LastIndex(location, "/")+1:]))
	found := between()
	if found == nil {
		fail("no binding has the key %q of the location %q", wanted.PropertiesKey, location)
	}
	equal(*found, wanted, "binding")
	response, err = client.DeleteBinding(slash, wanted)
	done(response, err, 204)
	equal(between() == nil, true, "the binding is gone")
}

func usersAndPermissions() {
	client := manager()
	user := name("user")
	settings := rabbithole.UserSettings{Password: "secret", Tags: rabbithole.UserTags{"management", "policymaker"}}
	response, err := client.PutUser(user, settings)
	done(response, err, 201)
	equal(must(client.GetUser(user)).Tags, settings.Tags, "tags")
	settings = rabbithole.UserSettings{
		Tags: rabbithole.UserTags{}, PasswordHash: rabbithole.Base64EncodedSaltedPasswordHashSHA512("other"),
		HashingAlgorithm: rabbithole.HashingAlgorithmSHA512,
	}
	response, err = client.PutUser(user, settings)
	done(response, err, 204)
	equal(len(must(client.GetUser(user)).Tags), 0, "tags that are left")
	permissions := rabbithole.Permissions{Configure: "^a", Write: "^b", Read: ".*"}
	response, err = client.UpdatePermissionsIn(slash, user, permissions)
	done(response, err, 201)
	shown := must(client.GetPermissionsIn(slash, user))
	equal([]string{shown.Configure, shown.Write, shown.Read}, []string{"^a", "^b", ".*"}, "permissions")
	topic := rabbithole.TopicPermissions{Exchange: "amq.topic", Write: "^x", Read: ".*"}
	response, err = client.UpdateTopicPermissionsIn(slash, user, topic)
	done(response, err, 201)
	topics := must(client.GetTopicPermissionsIn(slash, user))
	wanted := rabbithole.TopicPermissionInfo{User: user, Vhost: slash, Exchange: "amq.topic", Write: "^x", Read: ".*"}
	equal(topics, []rabbithole.TopicPermissionInfo{wanted}, "topic permissions")
	address := must(url.Parse(amqpURL))
	address.User = url.UserPassword(user, "other")
	ok(must(amqp.Dial(address.String())).Close(), "login by the hash")
	response, err = client.PutUserLimits(user, rabbithole.UserLimitsValues{"max-connections": 3})
	done(response, err, 204)
	equal(must(client.GetUserLimits(user))[0].Value["max-connections"], 3, "limit")
	response, err = client.DeleteTopicPermissionsIn(slash, user, "amq.topic")
	done(response, err, 204)
	response, err = client.ClearPermissionsIn(slash, user)
	done(response, err, 204)
	missing(client.GetPermissionsIn(slash, user))
	missing(client.GetTopicPermissionsIn(slash, user))
	response, err = client.DeleteUser(user)
	done(response, err, 204)
	missing(client.GetUser(user))
}

func vhostsAndLimits() {
	client := manager()
	vhost := name("a/vhost")
	tags := rabbithole.VhostTags{"one", "two"}
	settings := rabbithole.VhostSettings{Description: "told", Tags: tags}
	response, err := client.PutVhost(vhost, settings)
	done(response, err, 201)
	// None are set: nothing is requested.
	_, err = client.PutVhostLimits(vhost, rabbithole.VhostLimitsValues{})
	ok(err, "no limits")
	equal(len(must(client.GetVhostLimits(vhost))), 0, "limits")
	settings.Tracing = true
	response, err = client.PutVhost(vhost, settings)
	done(response, err, 204)
	found := must(client.GetVhost(vhost))
	equal([]interface{}{found.Name, found.Description, found.Tags, found.Tracing},
		[]interface{}{vhost, "told", tags, true}, "virtual host")
	limits := rabbithole.VhostLimitsValues{"max-connections": 7, "max-queues": 9}
	_, err = client.PutVhostLimits(vhost, limits)
	ok(err, "limits")
	wanted := []rabbithole.VhostLimitsInfo{{Vhost: vhost, Value: limits}}
	equal(must(client.GetVhostLimits(vhost)), wanted, "limits")
	for range []int{1, 2} {
		// It may be repeated.
		_, err = client.DeleteVhostLimits(vhost, rabbithole.VhostLimits{"max-connections", "max-queues"})
		ok(err, "limits are cleared")
	}
	response, err = client.DeleteVhost(vhost)
	done(response, err, 204)
	missing(client.GetVhost(vhost))
}

func policies() {
	client := manager()
	policy, queue := name("policy"), name("governed")
	must(client.DeclareQueue(slash, queue, rabbithole.QueueSettings{Durable: true}))
	defer client.DeleteQueue(slash, queue)
	wanted := rabbithole.Policy{Pattern: "^" + queue + "$", ApplyTo: "queues", Priority: 4,
		Definition: rabbithole.PolicyDefinition{"max-length": float64(5), "overflow": "reject-publish"}}
	response, err := client.PutPolicy(slash, policy, wanted)
	done(response, err, 201)
	wanted.Vhost, wanted.Name = slash, policy
	equal(*must(client.GetPolicy(slash, policy)), wanted, "policy")
	operator := rabbithole.OperatorPolicy{Pattern: "^" + queue + "$", ApplyTo: "queues", Priority: 1,
		Definition: rabbithole.PolicyDefinition{"max-length": float64(3)}}
	response, err = client.PutOperatorPolicy(slash, policy, operator)
	done(response, err, 201)
	operator.Vhost, operator.Name = slash, policy
	equal(*must(client.GetOperatorPolicy(slash, policy)), operator, "operator policy")
	eventually("the policy of the queue", func() (bool, bool) {
		return true, must(client.GetQueue(slash, queue)).Policy == policy
	})
	wanted.Definition = rabbithole.PolicyDefinition{"no-such-key": 1}
	_, err = client.PutPolicy(slash, policy, wanted)
	answered(err, 400, "are not recognised policy settings")
	response, err = client.DeletePolicy(slash, policy)
	done(response, err, 204)
	response, err = client.DeleteOperatorPolicy(slash, policy)
	done(response, err, 204)
	missing(client.GetPolicy(slash, policy))
	missing(client.GetOperatorPolicy(slash, policy))
}

func shovels() {
	client := manager()
	shovel, from, to := name("shovel"), name("from"), name("to")
	must(client.DeclareQueue(slash, from, rabbithole.QueueSettings{Durable: true}))
	must(client.DeclareQueue(slash, to, rabbithole.QueueSettings{Durable: true}))
	definition := rabbithole.ShovelDefinition{
		SourceURI: rabbithole.URISet{amqpURL}, SourceProtocol: "amqp091", SourceQueue: from,
		DestinationURI: rabbithole.URISet{amqpURL}, DestinationProtocol: "amqp091", DestinationQueue: to,
		AckMode: "on-confirm", ReconnectDelay: 1, SourceDeleteAfter: "never",
	}
	response, err := client.DeclareShovel(slash, shovel, definition)
	done(response, err, 201)
	shown := must(client.GetShovel(slash, shovel))
	equal([]string{shown.Name, shown.Vhost, shown.Definition.SourceQueue, shown.Definition.DestinationQueue},
		[]string{shovel, slash, from, to}, "shovel")
	publish(confirming(), "", from, text("moved"))
	equal(string(getOne(openChannel(), to, true).Body), "moved", "body")
	eventually("the shovel runs", func() (bool, bool) {
		for _, each := range must(client.ListShovelStatus(slash)) {
			if each.Name == shovel {
				return true, each.State == "running"
			}
		}
		return false, false
	})
	response, err = client.DeleteShovel(slash, shovel)
	done(response, err, 204)
	missing(client.GetShovel(slash, shovel))
	for _, queue := range []string{from, to} {
		response, err = client.DeleteQueue(slash, queue)
		done(response, err, 204)
	}
}

func parameters() {
	client := manager()
	parameter := name("global")
	response, err := client.PutGlobalParameter(parameter, map[string]interface{}{"a": []int{1}})
	done(response, err, 201)
	names := map[string]bool{}
	for _, each := range must(client.ListGlobalParameters()) {
		names[each.Name] = true
	}
	equal(names[parameter] && names["internal_cluster_id"], true, "parameters that are listed")
	response, err = client.DeleteGlobalParameter(parameter)
	done(response, err, 204)
	missing(client.GetGlobalParameter(parameter))
	must(client.ListRuntimeParameters())
}

func definitions() {
	client := manager()
	queue := name("defined")
	_, err := client.UploadDefinitions(&rabbithole.ExportedDefinitions{
		Policies: &[]rabbithole.PolicyDefinition{}, Exchanges: &[]rabbithole.ExchangeInfo{},
		Bindings: &[]rabbithole.BindingInfo{},
		Queues:   &[]rabbithole.QueueInfo{{Name: queue, Vhost: slash, Durable: true, Arguments: map[string]interface{}{}}},
	})
	ok(err, "upload")
	for _, told := range []*rabbithole.ExportedDefinitions{
		must(client.ListDefinitions()), must(client.ListVhostDefinitions(slash)),
	} {
		found := false
		for _, each := range *told.Queues {
			found = found || each.Name == queue
		}
		equal(found, true, "the queue is told")
	}
	response, err := client.DeleteQueue(slash, queue)
	done(response, err, 204)
}

func refusals() {
	address := must(url.Parse(httpURL))
	stranger := must(rabbithole.NewClient("http://"+address.Host, "guest", "wrong"))
	_, err := stranger.Whoami()
	contains(err.Error(), "401")
	client := manager()
	_, err = client.DeclareExchange(slash, name("x"), rabbithole.ExchangeSettings{Type: "no-such-type"})
	answered(err, 400, "unknown exchange type 'no-such-type'")
	_, err = client.DeclareBinding(slash, rabbithole.BindingInfo{
		Source: "amq.topic", Destination: name("nowhere"), DestinationType: "queue", RoutingKey: "a",
	})
	answered(err, 404, "no queue '"+name("nowhere")+"' in vhost '/'")
	missing(client.GetExchange(name("no-vhost"), "amq.topic"))
}
