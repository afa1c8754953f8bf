package zkstore

import (
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

func onStore(t *testing.T) nodetest.OnStore {
	t.Helper()
	store := openStore(t, newURL(t), patient())
	return nodetest.OnStore{Store: store, Restart: func() { reincarnate(t, store) }}
}

func TestConformance(t *testing.T) {
	testenv.Long(t, "a ZooKeeper store that passes storetest and breaks a rule of nodes")
	t.Parallel()
	onStore(t).Run(t)
}

func TestDifferential(t *testing.T) {
	testenv.Long(t, "such a store that breaks one in a sequence that nobody wrote down")
	t.Parallel()
	onStore(t).Differential(t)
}
