package etcdstore

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/pause"
)

// Tell sends a message to all servers that are listening to the topic.
func (s *Store) Tell(ctx context.Context, topic, message string) error {
	return s.conn.try(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Put(ctx, s.target.prefix+topicName+topic, message)
		return err
	})
}

// hearPause is the pause before a watch that ended is started again.
const hearPause = 100 * time.Millisecond

// Hear calls heard for every message of a topic until ctx ends. Messages that are sent
// while no member can be reached may be lost.
func (s *Store) Hear(ctx context.Context, topic string, heard func(message string)) {
	for ; ctx.Err() == nil; pause.For(ctx, hearPause) {
		if s.conn.login.await(ctx) != nil {
			continue
		}
		news, cancel := s.conn.watch(ctx, s.target.prefix+topicName+topic)
		for resp := range news {
			for _, e := range resp.Events {
				if e.Type == clientv3.EventTypePut {
					heard(string(e.Kv.Value))
				}
			}
		}
		cancel()
	}
}
