package sets_test

import (
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// locker is a Locker whose leases tests name by their ids.
type locker struct {
	*sets.Locker
	servicetest.ByID
}

func newLocker(cfg sets.Config, nodes ...[]node.Node) (*locker, error) {
	l, err := sets.New(cfg, nodes...)
	return &locker{l, servicetest.ByID{Calls: l}}, err
}
