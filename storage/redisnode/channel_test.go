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

// Words reach the servers of the same cluster, with the documented rights, and
// go on doing so after the node was away.
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
		listener.Hear(ctx, "topic", func(word string) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, word)
		})
	})
	untilHeard := func(word string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() error {
			_ = stranger.Tell(ctx, "topic", "a stranger's word")
			_ = speaker.Tell(ctx, "another topic", "a word elsewhere")
			if err := speaker.Tell(ctx, "topic", word); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(heard, word) {
				return fmt.Errorf("not heard: %q", word)
			}
			return nil
		})
	}
	untilHeard("hello\nthere")
	server.Kill()
	server.Restart()
	untilHeard("and again")
	cancel()
	listening.Wait()
	for _, word := range heard {
		if word != "hello\nthere" && word != "and again" {
			t.Errorf("heard %q", word)
		}
	}
}
