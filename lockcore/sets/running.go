package sets

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Unaware counts the running servers that do not know the change to Config.Next, and those of them that do not
// know the present map either. All nodes refuse the first kind once the change has begun, and the second kind
// once it is taken back. A server counts as running for three seconds after its last heartbeat. A server of a
// version that does not report its maps counts as unaware.
//
// Every server that can grant sends heartbeats to a quorum of nodes, so R nodes of each set show it.
func (l *Locker) Unaware(ctx context.Context) (ofChange, ofPresent int, err error) {
	for _, s := range l.router.sets {
		servers, err := s.servers(ctx)
		if err != nil {
			return 0, 0, err
		}
		change, present := 0, 0
		for _, server := range servers {
			known := s.knownTo(server)
			if !slices.Equal(known, []string{l.router.present.name, l.router.next.name}) {
				change++
			}
			if !slices.Contains(known, l.router.present.name) {
				present++
			}
		}
		ofChange, ofPresent = max(ofChange, change), max(ofPresent, present)
	}
	return ofChange, ofPresent, nil
}

// knownTo returns the names of the maps that a server with this id on the set's nodes knows.
func (s *set) knownTo(server string) []string {
	const drawn = 12 // the random part of the id
	if len(server) <= drawn {
		return []string{MapName([][]node.Node{s.Nodes()})}
	}
	return strings.Split(server[drawn+1:], "-")
}

// servers returns the ids of the running servers, as at least R nodes show them.
func (s *set) servers(ctx context.Context) (all []string, err error) {
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		asked  int
		failed error
	)
	for _, n := range s.Nodes() {
		wg.Go(func() {
			servers, err := n.Servers(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			asked++
			all = append(all, servers...)
		})
	}
	wg.Wait()
	if asked < quorum.Readers(len(s.Nodes())) {
		return nil, s.Failed(fmt.Errorf("too few nodes say which servers run: %w", failed))
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
