package boltnode

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/fencelock/fencelock/lockcore/nodetest"
)

func TestDifferential(t *testing.T) {
	dir, files := t.TempDir(), 0
	nodetest.Differential(t, func() (nodetest.Harness, func()) {
		files++
		n := open(t, filepath.Join(dir, fmt.Sprintf("%d.db", files)), Options{blank: true, sweep: quick(3)})
		return nodetest.Harness{Node: n, Restart: n.reincarnate(t), Wipe: n.wipe(t)}, func() { n.shut(t) }
	})
}
