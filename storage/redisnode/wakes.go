package redisnode

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/lockcore/node"
)

// resubscribePause is how long a lost subscription waits before the next try.
const resubscribePause = 250 * time.Millisecond

// Wakes listens for the turns of the server's tickets, on one connection.
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

// parseWake reads what vote.lua sends: the length of the resource's name, the name,
// and the ticket, with blanks between.
func parseWake(payload string) (resource string, t node.Ticket, ok bool) {
	size, rest, _ := strings.Cut(payload, " ")
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 || n >= len(rest) || rest[n] != ' ' {
		return "", t, false
	}
	return rest[:n], parseTicket(rest[n+1:]), true
}

// listen returns when the subscription breaks. It pings a silent connection, so
// that one that is cut off without a word is noticed.
func (n *Node) listen(ctx context.Context, channel string, take func(message any)) {
	sub := n.client.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // ends a blocking read
	defer stop()
	const silent = 5 * time.Second
	pinged := false
	for {
		message, err := receive(ctx, sub, silent)
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

// receive waits for a message. The library panics over one that it does not
// expect, which a broken node may send.
func receive(ctx context.Context, sub *redis.PubSub, timeout time.Duration) (message any, err error) {
	defer func() {
		if recover() != nil {
			message, err = nil, errUnreadable
		}
	}()
	return sub.ReceiveTimeout(ctx, timeout)
}
