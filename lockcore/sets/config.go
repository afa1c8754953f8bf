package sets

import (
	"errors"
	"fmt"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
)

// Config configures a Locker.
type Config = settings.Config

func validateSets(sets [][]node.Node) (err error) {
	if len(sets) == 0 {
		return errors.New("no set of nodes")
	}
	seen := make(map[string]bool)
	for _, nodes := range sets {
		switch len(nodes) {
		case 1, 3, 5, 7:
		default:
			err = errors.Join(err, fmt.Errorf("%d nodes: only 1, 3, 5 or 7 are supported", len(nodes)))
		}
		for _, n := range nodes {
			if seen[n.Name()] {
				err = errors.Join(err, fmt.Errorf("node %s is listed twice: each node must be a separate server", n.Name()))
			}
			seen[n.Name()] = true
		}
	}
	return err
}
