package memstore_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica/memstore"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness {
		var passed atomic.Int64
		began := time.Now()
		s := memstore.New(memstore.Options{Now: func() time.Time { return began.Add(time.Duration(passed.Load())) }})
		return storetest.Harness{
			Store:   s,
			Advance: func(d time.Duration) { passed.Add(int64(d)) },
			Lose:    func() { s.Restart(false) },
		}
	})
}
