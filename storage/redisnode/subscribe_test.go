package redisnode_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// Messages reach only the servers of the same cluster, with the documented rights, and reach them again after the
// node was down.
func TestTopicsAreTheClustersOwn(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t, testenv.WithUser("locks", "s3cret", documentedACL(t)...))
	open := func(cluster string) *redisnode.Node {
		n := openNode(t, server.URL(), redisnode.Options{})
		n.Join(node.Cluster{Nodes: 1, Hash: cluster})
		return n
	}
	speaker, listener, stranger := open("ours"), open("ours"), open("theirs")
	var mu sync.Mutex
	var heard []string
	ctx, cancel := context.WithCancel(t.Context())
	var listening sync.WaitGroup
	listening.Go(func() {
		listener.Hear(ctx, "topic", func(message string) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, message)
		})
	})
	await := func(message string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() error {
			_ = stranger.Tell(ctx, "topic", "a stranger's message")
			_ = speaker.Tell(ctx, "another topic", "another topic's message")
			if err := speaker.Tell(ctx, "topic", message); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(heard, message) {
				return fmt.Errorf("not heard: %q", message)
			}
			return nil
		})
	}
	await("hello\nthere")
	server.Kill()
	server.Restart()
	await("and again")
	cancel()
	listening.Wait()
	for _, message := range heard {
		if message != "hello\nthere" && message != "and again" {
			t.Errorf("heard %q", message)
		}
	}
}
