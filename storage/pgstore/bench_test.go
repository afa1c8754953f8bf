package pgstore

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/crowdtest"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

func BenchmarkPair(b *testing.B) {
	url := testenv.StartPostgres(b).OwnerURL()
	node := nodetest.Over(b, openStore(b, url, Options{Timeout: time.Minute}), replica.Options{Bootstrap: true})
	servicetest.BenchmarkPairs(b, crowdtest.Start(b, node).Locker, nil)
}
