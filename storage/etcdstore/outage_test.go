package etcdstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/internal/testenv"
)

// A member that refused connections is used again within a second after it accepts them, however long it refused: the
// pauses between attempts do not grow.
func TestAnOutageIsOverWhenItIsOver(t *testing.T) {
	for _, outage := range []time.Duration{100 * time.Millisecond, 6 * time.Second, 30 * time.Second} {
		t.Run(outage.String(), func(t *testing.T) {
			if outage > time.Second {
				testenv.Long(t, "pauses between connections that grow with an outage of etcd")
			}
			t.Parallel()
			host, prefix, _ := strings.Cut(strings.TrimPrefix(testenv.EtcdURL(t), "etcd://"), "/")
			path := testenv.StartProxy(t, host)
			s := openStore(t, "etcd://"+path.Addr()+"/"+prefix)
			increment(t, s)

			path.Cut(testenv.CutRefuse)
			during, end := context.WithTimeout(t.Context(), outage)
			defer end()
			for during.Err() == nil { // as a server does, which observes its store all the time
				_ = incremented(during, s)
				pause.For(during, 10*time.Millisecond)
			}
			path.Cut(testenv.CutNone)
			began := time.Now()
			for incremented(t.Context(), s) != nil {
				if !pause.For(t.Context(), 10*time.Millisecond) {
					t.Fatal("the store did not come back")
				}
			}
			took := time.Since(began)
			t.Logf("used again %s after an outage of %s", took.Round(time.Millisecond), outage)
			if took > time.Second {
				t.Errorf("used again only %s after an outage of %s", took, outage)
			}
		})
	}
}
