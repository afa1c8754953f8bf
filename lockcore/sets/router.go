package sets

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/compose"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

// set is one of the node sets: a quorum of its own.
type set struct {
	*redlock.Locker
	random random.Source
}

// router finds the set that has a resource, by the map of the node sets (rule 30). Without a
// next map there is only the present one, and nothing moves.
type router struct {
	sets          []*set // those of both maps
	present, next nodeSets
	inWords       string       // all sets that this server knows, for people
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

var _ compose.Resources = (*router)(nil)

// closedMap begins the name of the map of a set that was bootstrapped during a change:
// nothing is granted. What follows is random, so that no two such sets are confused.
const closedMap = "closed-"

func newRouter(cfg Config, present [][]node.Node) (*router, error) {
	if err := errors.Join(validateSets(present), validateNext(present, cfg.Next)); err != nil {
		return nil, err
	}
	r := &router{changed: make(chan struct{}), inWords: setsInWords(present)}
	r.present.name = MapName(present)
	if cfg.Next != nil {
		r.next.name = MapName(cfg.Next)
		r.inWords += ", and next " + setsInWords(cfg.Next)
	}
	var err error
	if r.present.sets, err = r.addAll(cfg, present, len(present) > 1); err == nil {
		r.next.sets, err = r.addAll(cfg, cfg.Next, len(present) > 1)
	}
	return r, err
}

func (r *router) addAll(cfg Config, lists [][]node.Node, several bool) (added []*set, err error) {
	for _, nodes := range lists {
		s, err := r.add(cfg, nodes, several)
		if err != nil {
			return nil, err
		}
		added = append(added, s)
	}
	return added, nil
}

// add makes the set of these nodes, or returns the one that there is.
func (r *router) add(cfg Config, nodes []node.Node, several bool) (*set, error) {
	cluster := membership.ClusterOf(nodes)
	for _, s := range r.sets {
		if s.Members().Cluster() == cluster {
			return s, nil
		}
	}
	s := &set{random: random.Source{Reader: cfg.Random(len(r.sets))}}
	quorum := cfg.quorum()
	quorum.Random = s.random.Reader
	quorum.Map = redlock.Maps{
		Sets: r.inWords, Suffix: r.suffix(several), Knows: r.knows, Others: func() []*keyring.Ring { return r.ringsBut(s) },
		New: func() node.Map { return r.newMap(s) }, Taken: func(m node.Map) { r.taken(s, m) },
	}
	var err error
	if s.Locker, err = redlock.New(quorum, nodes); err != nil {
		return nil, err
	}
	r.sets = append(r.sets, s)
	return s, nil
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
func (r *router) moving() string { return r.present.name + "-" + r.next.name + "-" }

// suffix says, in the id of a server, which maps it knows. One that has a single set needs
// none: whoever sees its id on the nodes of that set knows its map.
func (r *router) suffix(several bool) string {
	switch {
	case r.next.name != "":
		return "-" + r.present.name + "-" + r.next.name
	case several:
		return "-" + r.present.name
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

func (r *router) phaseOf(name string) phase {
	switch {
	case name == "", name == r.present.name:
		return phasePresent
	case r.next.name == "":
	case name == r.next.name:
		return phaseNext
	case strings.HasPrefix(name, closedMap):
		return phaseClosed
	case strings.HasPrefix(name, r.moving()):
		return phaseMoving
	}
	return phaseUnknown
}

// knows reports whether nodes may have the map of that name.
func (r *router) knows(name string) bool { return r.phaseOf(name) != phaseUnknown }

// newMap is that of a set which is bootstrapped.
func (r *router) newMap(s *set) (m node.Map) {
	switch {
	case r.next.name != "":
		m.Name = closedMap + s.random.Word()
	case r.sealed.Load():
		m.Name = r.present.name
	}
	m.Generation = r.generation.Load()
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
		return cmp.Compare(weight(a.Members().Cluster().Hash, resource), weight(b.Members().Cluster().Hash, resource))
	})
}

func (n nodeSets) has(s *set) bool { return slices.Contains(n.sets, s) }

// of is the set that may grant the resource now, with its map; nil while the resource
// moves. The nodes check it: they refuse votes by another map than theirs.
func (r *router) of(resource string) *redlock.Mapped {
	from := r.present.winner(resource).Now()
	if r.next.sets == nil {
		return from
	}
	to := r.next.winner(resource).Now()
	was, is := r.phaseOf(from.MapName()), r.phaseOf(to.MapName())
	switch {
	case is == phaseNext:
		return to
	case was == phasePresent, was == phaseMoving && from.Locker == to.Locker:
		return from
	}
	return nil
}

// serves reports whether the set has resources as far as is known.
func (r *router) serves(s *set) bool {
	switch {
	case r.next.sets == nil:
		return true
	case r.phaseOf(s.Now().MapName()) == phaseNext:
		return r.next.has(s)
	}
	return r.present.has(s)
}

// taken takes the map of a set.
func (r *router) taken(s *set, m node.Map) {
	if m.Name != "" {
		r.sealed.Store(true)
	}
	for g := r.generation.Load(); m.Generation > g && !r.generation.CompareAndSwap(g, m.Generation); g = r.generation.Load() {
	}
	s.TakeMap(m)
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *router) change() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// movingLimit is how long a request waits for a resource that moves.
const movingLimit = 5 * time.Second

// await returns the set once the resource no longer moves. The error is a *QuorumError.
func (r *router) await(ctx context.Context, resource string) (*redlock.Mapped, error) {
	if s := r.of(resource); s != nil {
		return s, nil
	}
	waiting, cancel := context.WithTimeout(ctx, movingLimit)
	defer cancel()
	for {
		changed := r.change()
		if s := r.of(resource); s != nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-waiting.Done():
			err := r.present.winner(resource).Unready(ctx, "its node sets are being changed, and the resource moves to another one")
			err.Resource = resource
			return nil, err
		}
	}
}

// At is compose.Resources'.
func (r *router) At(ctx context.Context, resource string, f func(compose.Resource) error) error {
	for {
		s, err := r.await(ctx, resource)
		if err != nil {
			return err
		}
		err = f(s)
		if !errors.Is(err, lockcore.ErrNoQuorum) || !r.outdated(ctx, s, resource) {
			return err
		}
	}
}

// outdated reports whether the resource has another set or its set another map. Nodes that
// refused a vote do not say which: the set is observed.
func (r *router) outdated(ctx context.Context, s *redlock.Mapped, resource string) bool {
	if r.next.sets == nil || ctx.Err() != nil {
		return false
	}
	if r.of(resource) == s {
		s.Members().Observe(ctx)
	}
	return r.of(resource) != s && ctx.Err() == nil
}

// Rings is compose.Resources'.
func (r *router) Rings() []*keyring.Ring { return r.ringsBut(nil) }

// ringsBut are the known keys of all sets but one.
func (r *router) ringsBut(but *set) (rings []*keyring.Ring) {
	rings = make([]*keyring.Ring, 0, 1) // nearly always one, and then not on the heap
	for _, s := range r.sets {
		if ring := s.Ring(); ring != nil && s != but {
			rings = append(rings, ring)
		}
	}
	return rings
}

// ReadRings is compose.Resources'. An id that does not open after it is nobody's (rule 24).
func (r *router) ReadRings(ctx context.Context) error {
	errs := make([]error, len(r.sets))
	var wg sync.WaitGroup
	for i, s := range r.sets {
		if !r.present.has(s) && !r.serves(s) { // it has sealed nothing yet
			continue
		}
		wg.Go(func() { errs[i] = s.ReadRing(ctx) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// Ring is compose.Resources'.
func (*router) Ring(p *redlock.Part) *keyring.Ring { return p.Ring() }

// RetractLater is compose.Resources'.
func (*router) RetractLater(p *redlock.Part) { p.RetractLater() }

// Retract is compose.Resources'.
func (*router) Retract(p *redlock.Part) { p.Retract() }

// weight is the weight of a set for a resource. FNV alone gives similar names similar
// weights, so its bits are mixed (the finaliser of MurmurHash3).
func weight(set, resource string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(set)) // never fails (hash.Hash)
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(resource))
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
