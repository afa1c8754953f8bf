package redisnode

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/node"
)

const (
	// resubscribePause is the time before a broken subscription is tried again.
	resubscribePause = 250 * time.Millisecond
	// pingAfter is how long a subscription may be idle before it is pinged.
	pingAfter = 5 * time.Second
)

// Subscribe notifies w when a ticket of the server becomes first in its queue. It uses one connection.
func (n *Node) Subscribe(ctx context.Context, server string, w node.Listener) {
	n.subscribe(ctx, "fencelock:wake:"+server, func(message any) {
		switch message := message.(type) {
		case *redis.Subscription:
			w.Subscribed()
		case *redis.Message:
			if resource, ticket, ok := parseWake(message.Payload); ok {
				w.Wake(resource, ticket)
			}
		}
	})
}

// parseWake reads a message that vote.lua publishes: the length of the resource's name, the name and the
// ticket, separated by blanks.
func parseWake(payload string) (resource string, t node.Ticket, ok bool) {
	size, rest, _ := strings.Cut(payload, " ")
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 || n >= len(rest) || rest[n] != ' ' {
		return "", t, false
	}
	return rest[:n], parseTicket(rest[n+1:]), true
}

// topicChannel is the channel of a topic. It names the cluster, because all databases of a Redis server share
// their channels.
func (n *Node) topicChannel(topic string) string { return "fencelock:" + topic + ":" + n.mark }

// Tell sends a message to all servers of the cluster that are listening to the topic.
func (n *Node) Tell(ctx context.Context, topic, message string) error {
	return n.client.Publish(ctx, n.topicChannel(topic), message).Err()
}

// Hear calls heard for every message of a topic until ctx ends, on one connection. Messages that are sent
// while the connection is down are lost.
func (n *Node) Hear(ctx context.Context, topic string, heard func(message string)) {
	n.subscribe(ctx, n.topicChannel(topic), func(message any) {
		if message, ok := message.(*redis.Message); ok {
			heard(message.Payload)
		}
	})
}

// subscribe calls take for every message on the channel until ctx ends, and reconnects by itself.
func (n *Node) subscribe(ctx context.Context, channel string, take func(message any)) {
	for ctx.Err() == nil {
		n.listen(ctx, channel, take)
		pause.For(ctx, resubscribePause)
	}
}

// listen returns when the subscription breaks. It pings an idle connection, to notice that it was cut off
// silently.
func (n *Node) listen(ctx context.Context, channel string, take func(message any)) {
	sub := n.client.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // ends a blocking read
	defer stop()
	pinged := false
	for {
		message, err := receive(ctx, sub)
		switch {
		case err == nil:
			pinged = false
			take(message)
		case ctx.Err() != nil || pinged || !isTimeout(err) || sub.Ping(ctx) != nil:
			return
		default:
			pinged = true
		}
	}
}

// receive waits for a message. The library panics on an unexpected message, which a broken node may send, so
// receive turns the panic into an error.
func receive(ctx context.Context, sub *redis.PubSub) (message any, err error) {
	defer func() {
		if recover() != nil {
			message, err = nil, errUnreadable
		}
	}()
	return sub.ReceiveTimeout(ctx, pingAfter)
}
