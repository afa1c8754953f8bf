package redisnode

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// topicChannel is the name of a topic's channel. Channels know no databases, so
// it names the cluster.
func (n *Node) topicChannel(topic string) string { return "fencelock:" + topic + ":" + n.mark() }

// Tell sends a word to all servers of the cluster that hear the topic now.
func (n *Node) Tell(ctx context.Context, topic, word string) error {
	return n.client.Publish(ctx, n.topicChannel(topic), word).Err()
}

// Hear calls heard for every word of a topic until ctx ends, on one connection.
// What is told while that is down is lost.
func (n *Node) Hear(ctx context.Context, topic string, heard func(word string)) {
	n.subscribe(ctx, n.topicChannel(topic), func(message any) {
		if message, ok := message.(*redis.Message); ok {
			heard(message.Payload)
		}
	})
}

// subscribe calls take for everything that comes on the channel until ctx ends,
// reconnecting by itself.
func (n *Node) subscribe(ctx context.Context, channel string, take func(message any)) {
	for ctx.Err() == nil {
		n.listen(ctx, channel, take)
		select {
		case <-ctx.Done():
		case <-time.After(resubscribePause):
		}
	}
}
