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

// router finds the set of a resource, by the map of the node sets (rule 30). Without a next map there is only
// the present map, and nothing moves.
type router struct {
	sets          []*set // the sets of both maps
	present, next nodeSets
	keys          bool         // lease ids are sealed with configured keys
	alone         bool         // there is only one present set: nodes that never had a map belong to it
	inWords       string       // all sets that this server knows, for messages
	sealed        atomic.Bool  // a set has a map with a name
	generation    atomic.Int64 // the largest generation of a set's map

	mu      sync.Mutex
	changed chan struct{} // closed when the map of a set changes
}

// nodeSets are the sets over which resources are spread, and the name of their map.
type nodeSets struct {
	sets []*set
	name string
}

var _ compose.Resources = (*router)(nil)

// closedMap is the prefix of the map's name on a set that was bootstrapped during a change. Nothing is granted
// under it. The rest of the name is random, to distinguish such sets.
const closedMap = "closed-"

// claimedMap is the prefix of the map's name with which one of several sets is bootstrapped; the name of the
// present map follows. Nothing is granted under it; see nextMap. A single set does not need it, and has the
// map without a name until its sets are changed.
const claimedMap = "new-"

func newRouter(cfg Config, present [][]node.Node) (*router, error) {
	if err := errors.Join(validateSets(present), validateNext(present, cfg.Next)); err != nil {
		return nil, err
	}
	r := &router{changed: make(chan struct{}), inWords: setsInWords(present), alone: len(present) == 1, keys: cfg.Keys != nil}
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

// add makes the set of these nodes, or returns the existing one.
func (r *router) add(cfg Config, nodes []node.Node, several bool) (*set, error) {
	cluster := membership.ClusterOf(nodes)
	for _, s := range r.sets {
		if s.Members().Cluster() == cluster {
			return s, nil
		}
	}
	s := &set{random: random.Source{Reader: cfg.Entropy(len(r.sets))}}
	var err error
	s.Locker, err = redlock.New(cfg, nodes, redlock.Set{
		Random: s.random.Reader, Suffix: r.suffix(several), Others: func() []*keyring.Ring { return r.ringsBut(s) },
		Maps: membership.Maps{
			Sets: r.inWords, Knows: r.knows, OtherList: r.otherList,
			NewMap:     func() node.Map { return r.newMap(s) },
			NewSecrets: func() (node.Secrets, bool) { return r.newSecrets(s) },
			NextMap:    func(now node.Map) (node.Map, bool) { return r.nextMap(s, now) },
			Mapped:     func(m node.Map) { r.taken(s, m) },
		},
	})
	if err != nil {
		return nil, err
	}
	if !r.alone {
		s.TakeMap(node.Map{Name: r.present.name}) // until the nodes show another
	}
	r.sets = append(r.sets, s)
	return s, nil
}

// setsInWords formats node sets as in the configuration.
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

// moving is the prefix of the names of all moving maps of this change.
func (r *router) moving() string { return r.present.name + "-" + r.next.name + "-" }

// suffix is the part of a server's id that says which maps it knows. A server with a single set needs none:
// its id on the nodes of that set shows that it knows the set's map.
func (r *router) suffix(several bool) string {
	switch {
	case r.next.name != "":
		return "-" + r.present.name + "-" + r.next.name
	case several:
		return "-" + r.present.name
	}
	return ""
}

// phase is the progress of a set in a change.
type phase int

const (
	phaseUnknown phase = iota // of another change, or of other sets
	phaseNew                  // bootstrapped: not all sets have shown the list of this server
	phaseClosed
	phasePresent
	phaseMoving
	phaseNext
)

func (r *router) phaseOf(name string) phase {
	switch {
	case name == r.present.name, name == "" && r.alone:
		return phasePresent
	case name == claimedMap+r.present.name:
		return phaseNew
	case r.next.name == "":
	case name == r.next.name:
		return phaseNext
	case strings.HasPrefix(name, closedMap), name == claimedMap+r.next.name:
		return phaseClosed
	case strings.HasPrefix(name, r.moving()):
		return phaseMoving
	}
	return phaseUnknown
}

// knows reports whether nodes may have the map of that name.
func (r *router) knows(name string) bool { return r.phaseOf(name) != phaseUnknown }

// newMap returns the map for a set that is bootstrapped.
func (r *router) newMap(s *set) (m node.Map) {
	switch {
	case r.next.name != "":
		m.Name = closedMap + s.random.Word()
	case !r.alone:
		m.Name = claimedMap + r.present.name
	case r.sealed.Load():
		m.Name = r.present.name
	}
	m.Generation = r.generation.Load()
	return m
}

// newSecrets returns the secrets for a set that is bootstrapped. A set that a change adds gets the secrets of
// a set that leaves, so that lease ids sealed by that set can be opened even when the new set leaves later.
// Each added set gets those of another leaving set.
func (r *router) newSecrets(s *set) (secrets node.Secrets, known bool) {
	added, leaving := without(r.next.sets, r.present), without(r.present.sets, r.next)
	k := slices.Index(added, s)
	if r.next.sets == nil || k < 0 || k >= len(leaving) || r.keys {
		return "", true
	}
	secrets = leaving[k].Members().Secrets()
	return secrets, secrets != ""
}

// nextMap opens a set that was bootstrapped. It does so when all sets have shown this server's list, or when
// one set has the present map, for which all had to show the list (rule 26). So no two sets are opened by
// different lists.
func (r *router) nextMap(s *set, now node.Map) (next node.Map, follows bool) {
	if r.phaseOf(now.Name) != phaseNew || !r.listIsKnown(s) {
		return now, false
	}
	now.Name = r.present.name
	return now, true
}

// listIsKnown reports whether all sets except this one have this server's list now, or one of them has been
// opened by it.
func (r *router) listIsKnown(but *set) bool {
	all := true
	for _, s := range r.present.sets {
		if s == but {
			continue
		}
		if s.Members().Shows(func(name string) bool { return name == r.present.name }) {
			return true
		}
		all = all && s.Members().Shows(func(name string) bool { return name == claimedMap+r.present.name })
	}
	return all
}

// otherList reports whether a set shows that its servers have a different list of node sets.
func (r *router) otherList() bool {
	return slices.ContainsFunc(r.sets, func(s *set) bool { return s.Members().OtherList() })
}

// winner returns the set to which the resource belongs. All slots of a resource are on the resource's set,
// where a node knows which of them an idempotency key has (rule 29).
func (n nodeSets) winner(resource string) *set {
	if len(n.sets) == 1 {
		return n.sets[0]
	}
	resource, _ = lockcore.SlotOf(resource)
	return slices.MaxFunc(n.sets, func(a, b *set) int {
		return cmp.Compare(weight(a.Members().Cluster().Hash, resource), weight(b.Members().Cluster().Hash, resource))
	})
}

// without returns the sets that are not in the other list, in the same order everywhere.
func without(sets []*set, other nodeSets) []*set {
	rest := slices.DeleteFunc(slices.Clone(sets), other.has)
	slices.SortFunc(rest, byHash)
	return rest
}

// byHash orders sets independently of a configuration.
func byHash(a, b *set) int {
	return strings.Compare(a.Members().Cluster().Hash, b.Members().Cluster().Hash)
}

func (n nodeSets) has(s *set) bool { return slices.Contains(n.sets, s) }

// of returns the set that may grant the resource now, with its map. It returns nil while the resource moves,
// or its set is new. The nodes check the map: they refuse votes under another one.
func (r *router) of(resource string) *redlock.Mapped {
	from := r.present.winner(resource).Now()
	if r.next.sets == nil {
		if r.phaseOf(from.MapName()) == phaseNew {
			return nil
		}
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

// serves reports whether the set has resources, as far as this server knows.
func (r *router) serves(s *set) bool {
	switch {
	case r.next.sets == nil:
		return true
	case r.phaseOf(s.Now().MapName()) == phaseNext:
		return r.next.has(s)
	}
	return r.present.has(s)
}

// taken handles a set's change of map.
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
		if r.isNew(r.present.winner(resource)) { // perhaps until somebody configures a server
			return nil, r.withoutSet(ctx, resource)
		}
		select {
		case <-changed:
		case <-waiting.Done():
			return nil, r.withoutSet(ctx, resource)
		}
	}
}

// withoutSet returns the error for a resource that no set may grant now.
func (r *router) withoutSet(ctx context.Context, resource string) error {
	s, why := r.present.winner(resource), "its node sets are being changed, and the resource moves to another one"
	if r.isNew(s) {
		why = newSet
	}
	err := s.Unready(ctx, why)
	err.Resource = resource
	return err
}

// isNew reports whether a set was bootstrapped and is not open yet.
func (r *router) isNew(s *set) bool { return r.phaseOf(s.Now().MapName()) == phaseNew }

// newSet is the reason why a set that was bootstrapped grants nothing yet.
const newSet = "it is new, and grants once every node set has shown this server's list (FENCELOCK_REDIS_ADDRS)"

// At implements compose.Resources.
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

// outdated reports whether the resource has another set, or its set another map. Nodes that refuse a vote do
// not say which map they have, so it observes the set.
func (r *router) outdated(ctx context.Context, s *redlock.Mapped, resource string) bool {
	if r.next.sets == nil || ctx.Err() != nil {
		return false
	}
	if r.of(resource) == s {
		s.Members().Observe(ctx)
	}
	return r.of(resource) != s && ctx.Err() == nil
}

// Rings implements compose.Resources.
func (r *router) Rings() []*keyring.Ring { return r.ringsBut(nil) }

// ringsBut returns the known keys of all sets except one.
func (r *router) ringsBut(but *set) (rings []*keyring.Ring) {
	rings = make([]*keyring.Ring, 0, 1) // nearly always one, and then not on the heap
	for _, s := range r.sets {
		if ring := s.Ring(); ring != nil && s != but {
			rings = append(rings, ring)
		}
	}
	return rings
}

// ReadRings implements compose.Resources. An id that still does not open belongs to no lease (rule 24).
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

// Ring implements compose.Resources.
func (*router) Ring(p *redlock.Grant) *keyring.Ring { return p.Ring() }

// RetractLater implements compose.Resources.
func (*router) RetractLater(p *redlock.Grant) { p.RetractLater() }

// Retract implements compose.Resources.
func (*router) Retract(p *redlock.Grant) { p.Retract() }

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
