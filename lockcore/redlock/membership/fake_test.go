package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
)

var errFake = errors.New("no response in time")

// fakeNode has a name and refuses to be observed. A test adds the other methods that it needs.
type fakeNode struct {
	node.Node
	name string
}

func (f *fakeNode) Name() string      { return f.name }
func (f *fakeNode) Join(node.Cluster) {}

func (f *fakeNode) Observe(context.Context) (node.Observation, error) {
	return node.Observation{}, errFake
}

func fakes(n int) []node.Node {
	nodes := make([]node.Node, n)
	for i := range nodes {
		nodes[i] = &fakeNode{name: fmt.Sprintf("node%d", i+1)}
	}
	return nodes
}

// testConfig is the configuration of a Locker with default settings.
func testConfig() Config {
	log := slog.New(slog.DiscardHandler)
	return Config{
		Config: settings.Config{
			MaxTTL: time.Minute, NodeDownAfter: 200 * time.Millisecond, WatchInterval: 250 * time.Millisecond,
			Recovery: settings.RecoveryAuto, Logger: log, Audit: log,
		},
		Random:  random.Source{Reader: rand.NewChaCha8([32]byte{1})},
		Secrets: func([][]byte) {},
	}
}
