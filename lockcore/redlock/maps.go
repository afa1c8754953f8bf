package redlock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// KnowsMap reports whether a server with these present sets, and the next ones or none, may
// meet nodes with the map of that name.
func KnowsMap(name string, present, next []node.Cluster) bool {
	a := &atlas{}
	if a.present.name = MapOf(present...); next != nil {
		a.next.name = MapOf(next...)
	}
	return a.knows(name)
}

// atlas is what a Locker knows of the map of its node sets (rule 30). Without a next map
// there is only the present one, and nothing moves.
type atlas struct {
	present, next nodeSets
	several       bool         // present sets
	sets          string       // all that this server knows, for people
	sealed        atomic.Bool  // a set has a map that is not empty
	generation    atomic.Int64 // the largest of a map that a set had

	mu      sync.Mutex
	changed chan struct{} // is closed when the map of a set has changed
}

// nodeSets are the sets over which resources are spread, and the name of their map.
type nodeSets struct {
	sets []*set
	name string
}

// closedMap begins the name of the map of a set that was bootstrapped during a change:
// nothing is granted. What follows is random, so that no two such sets are confused.
const closedMap = "closed-"

// MapName names a list of sets, whatever their order.
func MapName(sets [][]node.Node) string {
	var clusters []node.Cluster
	for _, nodes := range sets {
		clusters = append(clusters, membership.ClusterOf(nodes))
	}
	return MapOf(clusters...)
}

// MapOf is MapName for the clusters that the sets are.
func MapOf(clusters ...node.Cluster) string {
	var hashes []string
	for _, c := range clusters {
		hashes = append(hashes, c.Hash)
	}
	slices.Sort(hashes)
	sum := sha256.Sum256([]byte(strings.Join(hashes, "\n")))
	return hex.EncodeToString(sum[:8])
}

func newAtlas(present, next [][]node.Node) *atlas {
	a := &atlas{changed: make(chan struct{}), several: len(present) > 1}
	a.present.name = MapName(present)
	a.sets = setsInWords(present)
	if next != nil {
		a.next.name = MapName(next)
		a.sets += ", and next " + setsInWords(next)
	}
	return a
}

// setsInWords writes node sets as they are configured.
func setsInWords(sets [][]node.Node) string {
	lists := make([]string, len(sets))
	for i, nodes := range sets {
		names := make([]string, len(nodes))
		for k, n := range nodes {
			names[k] = n.Name()
		}
		lists[i] = strings.Join(names, ",")
	}
	return strings.Join(lists, ";")
}

// moving begins the names of all moving maps of this change.
func (a *atlas) moving() string { return a.present.name + "-" + a.next.name + "-" }

// suffix says, in the id of a server, which maps it knows. One that has a single set needs
// none: whoever sees its id on the nodes of that set knows its map.
func (a *atlas) suffix() string {
	switch {
	case a.next.name != "":
		return "-" + a.present.name + "-" + a.next.name
	case a.several:
		return "-" + a.present.name
	}
	return ""
}

// phase is how far a set is.
type phase int

const (
	phaseUnknown phase = iota // of another change, or of other sets
	phaseClosed
	phasePresent
	phaseMoving
	phaseNext
)

func (a *atlas) phaseOf(name string) phase {
	switch {
	case name == "", name == a.present.name:
		return phasePresent
	case a.next.name == "":
	case name == a.next.name:
		return phaseNext
	case strings.HasPrefix(name, closedMap):
		return phaseClosed
	case strings.HasPrefix(name, a.moving()):
		return phaseMoving
	}
	return phaseUnknown
}

// knows reports whether nodes may have the map of that name.
func (a *atlas) knows(name string) bool { return a.phaseOf(name) != phaseUnknown }

// newMap is that of a set which is bootstrapped.
func (a *atlas) newMap(s *set) (m node.Map) {
	switch {
	case a.next.name != "":
		m.Name = closedMap + s.random.Word()
	case a.sealed.Load():
		m.Name = a.present.name
	}
	m.Generation = a.generation.Load()
	return m
}

// winner is the set to which the resource belongs. All slots of a resource are on its own
// set, where a node knows which of them an idempotency key has (rule 29).
func (n nodeSets) winner(resource string) *set {
	if len(n.sets) == 1 {
		return n.sets[0]
	}
	resource, _ = lockcore.SlotOf(resource)
	return slices.MaxFunc(n.sets, func(a, b *set) int {
		return cmp.Compare(weight(a.members.Cluster().Hash, resource), weight(b.members.Cluster().Hash, resource))
	})
}

func (n nodeSets) has(s *set) bool {
	return slices.ContainsFunc(n.sets, func(one *set) bool { return one.setState == s.setState })
}

// of is the set that may grant the resource now, with its map; nil while the resource
// moves. The nodes check it: they refuse votes by another map than theirs.
func (a *atlas) of(resource string) *set {
	from := a.present.winner(resource).now()
	if a.next.sets == nil {
		return from
	}
	to := a.next.winner(resource).now()
	was, is := a.phaseOf(from.mapName), a.phaseOf(to.mapName)
	switch {
	case is == phaseNext:
		return to
	case was == phasePresent, was == phaseMoving && from.setState == to.setState:
		return from
	}
	return nil
}

// serves reports whether the set has resources as far as is known.
func (a *atlas) serves(s *set) bool {
	switch {
	case a.next.sets == nil:
		return true
	case a.phaseOf(s.now().mapName) == phaseNext:
		return a.next.has(s)
	}
	return a.present.has(s)
}

// mapped takes the map of a set.
func (a *atlas) mapped(s *set, m node.Map) {
	if m.Name != "" {
		a.sealed.Store(true)
	}
	for g := a.generation.Load(); m.Generation > g && !a.generation.CompareAndSwap(g, m.Generation); g = a.generation.Load() {
	}
	under := *s
	under.mapName = m.Name
	if s.present.Swap(&under).mapName == m.Name {
		return
	}
	s.queue.Interrupt()
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *atlas) change() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// movingLimit is how long a request waits for a resource that moves.
const movingLimit = 5 * time.Second

// await returns the set once the resource no longer moves. The error is a *QuorumError.
func (a *atlas) await(ctx context.Context, resource string) (*set, error) {
	if s := a.of(resource); s != nil {
		return s, nil
	}
	waiting, cancel := context.WithTimeout(ctx, movingLimit)
	defer cancel()
	for {
		changed := a.change()
		if s := a.of(resource); s != nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-waiting.Done():
			err := a.present.winner(resource).unready(ctx, "its node sets are being changed, and the resource moves to another one")
			err.Resource = resource
			return nil, err
		}
	}
}

// at calls f with the set that has the resource, and again with another one if the
// resource has moved in the meantime.
func at[T any](ctx context.Context, l *Locker, resource string, f func(*set) (T, error)) (T, error) {
	for {
		s, err := l.atlas.await(ctx, resource)
		if err != nil {
			var none T
			return none, err
		}
		result, err := f(s)
		if !errors.Is(err, lockcore.ErrNoQuorum) || !l.atlas.outdated(ctx, s, resource) {
			return result, err
		}
	}
}

// outdated reports whether the resource has another set or its set another map. Nodes that
// refused a vote do not say which: the set is observed.
func (a *atlas) outdated(ctx context.Context, s *set, resource string) bool {
	if a.next.sets == nil || ctx.Err() != nil {
		return false
	}
	if a.of(resource) == s {
		s.members.Observe(ctx)
	}
	return a.of(resource) != s && ctx.Err() == nil
}

// validateNext refuses a next map that shares some nodes of a set.
func validateNext(present, next [][]node.Node) error {
	if next == nil {
		return nil
	}
	if MapName(present) == MapName(next) {
		return errors.New("the next node sets are the present ones")
	}
	hashes := make(map[string]string) // by node
	for _, nodes := range slices.Concat(present, next) {
		hash := membership.ClusterOf(nodes).Hash
		for _, n := range nodes {
			if was := hashes[n.Name()]; was != "" && was != hash {
				return fmt.Errorf("node %s is in two node sets: a set is added or removed as a whole", n.Name())
			}
			hashes[n.Name()] = hash
		}
	}
	return validateSets(next)
}
