package node

import (
	"context"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Admittee is a node as the servers see it that may admit it. An admission is Stage,
// Load as often as needed, Admit. Each of them compares what the Admission pins with
// what the node is now, so that of several admissions at most one is completed.
type Admittee interface {
	// Join sets the cluster of the caller, once, before any other call. At every vote
	// the node compares it with its admission record (rule 14).
	Join(c Cluster)
	// Observe reports the node's state and changes nothing.
	Observe(ctx context.Context) (Observation, error)
	// Quarantine begins the quarantine of a node that is not admitted (rule 13): it
	// stores the note, unless the node has one. The note disappears with the node's
	// data and with an admission, so a node that was admitted and lost its data again
	// has another note than one that stayed as it was. Errors: ErrRaced if the node is
	// admitted, ErrForeign.
	Quarantine(ctx context.Context, note string) error
	// Stage begins an admission: it purges every lock, counter and queue (rule 11) and
	// sets the high-water mark to the larger of its own and a.Floor. Errors: ErrRaced
	// if the node has another note, is admitted (but see MissedNote) or is staged under
	// a larger epoch; ErrForeign.
	Stage(ctx context.Context, a Admission) error
	// Load writes counters, and the locks of those with an Owner, on a node that is
	// staged for a. ErrRaced if it is not.
	Load(ctx context.Context, a Admission, locks []CarriedLock) error
	// Admit ends the admission of a node that is staged for a: from now on it votes in
	// a.Epoch. ErrRaced if it is not staged for a.
	Admit(ctx context.Context, a Admission) error
	// RaiseMaxTTL makes the longest TTL of the admission record at least ttl. A server
	// calls it before it grants that long. ErrNotAdmitted.
	RaiseMaxTTL(ctx context.Context, ttl time.Duration) error
	// InstallMap installs the map on a node that is admitted in exactly m.Epoch (rule 30).
	// The floor only grows, and the high-water mark is at least the floor afterwards.
	// Errors: ErrStaleEpoch, ErrNotAdmitted.
	InstallMap(ctx context.Context, m Map) error
	// Receive writes the locks that move to this set, on a node that is admitted in exactly
	// this epoch and has the map of that name: each replaces the resource's lock and
	// counter. One without an Owner deletes the lock. Errors: ErrStaleEpoch, and
	// ErrNotAdmitted also with another map.
	Receive(ctx context.Context, epoch Epoch, name string, locks []CarriedLock) error
	// ReplaceSecrets replaces the secrets of the admission record if they are was.
	// Errors: ErrNotAdmitted, ErrRaced if they are others.
	ReplaceSecrets(ctx context.Context, was, with Secrets) error
}

// Marks are what a fenced read returns, and what an Observation shows of them.
type Marks struct {
	HighWater    fencing.Token // the largest counter or token that the node ever saw
	MaxTTL       time.Duration // the longest TTL in use, from its admission record
	Bootstrapped Epoch         // the epoch of the last bootstrap that it took part in or was admitted after
	Secrets      Secrets       // the cluster's, from its admission record
	Map          Map           // of the node sets
}

// Map is what a node keeps about the node sets over which resources are spread (rule
// 30). Its name says which resources the set of this node has: servers vote under a name,
// and the node refuses any other. The zero Map is that of a set whose map was never changed.
type Map struct {
	Name  string // see Op.Validate; may be empty
	Epoch Epoch  // in which it was installed
	// Floor is at least every token that another set granted before it gave resources to
	// this one. A counter below it reads as the floor while the resource is not locked.
	Floor fencing.Token
	// Generation numbers the maps of a cluster: every run of a change writes a larger one
	// than it was planned from. 0 is the map of a cluster that was never changed, and any
	// map of a version without generations.
	Generation int64
}

// CarriedLock is a resource's state on its way from admitted nodes to one that rejoins.
type CarriedLock struct {
	Resource  string
	Counter   fencing.Token // the effective counter, to be written by Load; Survey leaves it 0
	Owner     string        // "" carries the counter alone
	Grant     fencing.Token
	Remaining time.Duration
	TTL       time.Duration
	Meta      string
	Keyed     bool // created, or perhaps created, under an idempotency key
}

// Cluster identifies a node set. A node refuses servers that are configured with
// another one (rule 14).
type Cluster struct {
	Nodes int
	Hash  string // over the sorted node names
}

// Observation is a node's state at one moment.
type Observation struct {
	// Incarnation changes whenever the node may have lost state: at every restart,
	// promotion and fail-back. Redis calls it the replication id.
	Incarnation string
	// Admitted: the admission record exists and names this very incarnation.
	Admitted bool
	Cluster  Cluster // from its record; zero without one
	Epoch    Epoch   // from its record, whether it is admitted or not
	Staged   Epoch   // of an admission that was begun and not ended; 0 without one
	Marks    Marks   // as far as they survived
	Empty    bool    // the node holds nothing, or only the note of its quarantine
	Note     string  // of its quarantine; "" without one, and while it is admitted
	// Version and Role are for people: the node's program ("Redis 7.2.4") and what it is
	// there ("master"). "" where there is none.
	Version, Role string
	// Unfit says why the node must not vote and what an operator must change: it is a
	// replica, evicts, is shared, is too old. "" if it may vote.
	Unfit string
}

// Admission is one attempt to admit a node.
type Admission struct {
	Incarnation string // as observed before the reads; another one is ErrRaced (rule 10)
	Note        string // as observed; of a node that missed a bootstrap, its MissedNote
	Epoch       Epoch
	// Bootstrapped is the epoch of the bootstrap that Epoch descends from; at most Epoch.
	Bootstrapped Epoch
	Cluster      Cluster
	Floor        fencing.Token // the high-water mark is at least this afterwards
	MaxTTL       time.Duration // the longest TTL in use is at least this afterwards
	Secrets      Secrets
	Map          Map  // afterwards the node's
	OnlyIfEmpty  bool // the operator said that the cluster is new: ErrRaced if the node holds anything
}

// MissedNote stands for the note of a node that missed a bootstrap: one that is
// admitted in epoch, which is smaller than Admission.Bootstrapped. Such a node may be
// staged while it is still in that very epoch (rule 12). Stage writes the note into
// its data, so that the quarantine which other servers wait for stays the same.
//
// It identifies one quarantine though nothing in it is random: an incarnation is never
// admitted in an epoch twice (rule 9). Whoever stages such a node does so under a
// larger epoch; no smaller one is staged over that; and Admit, which deletes the note,
// installs it. So a Stage that comes late or twice finds this very quarantine or is
// refused. FLUSHALL deletes the epoch together with the note.
func MissedNote(epoch Epoch) string { return "missed " + strconv.FormatInt(int64(epoch), 10) }

// FloorAt is the smallest high-water mark of a cluster that is bootstrapped now (rule
// 12): the Unix time in microseconds. A lease uses two numbers (its grant, and one more
// when it is released), so the clock stays ahead of any resource that is acquired less
// often than half a million times a second. It is below 2^53 until the year 2255.
func FloorAt(now time.Time) fencing.Token { return fencing.Token(now.UnixMicro()) }

// Reachable reports whether the cluster can have reached this token (rule 23), as seen
// by a node with this high-water mark and this clock: the token is at most
// MaxTokensAhead above both. A node refuses any other that a confirm, an extend or a
// release carries, with ErrUnreachableToken.
func Reachable(token, highWater fencing.Token, now time.Time) bool {
	return token <= max(highWater, FloorAt(now))+MaxTokensAhead
}

// Plausible reports whether any cluster can have reached this token: it is at most 2^51
// above where one that is bootstrapped now would begin. A broken node that reports a
// larger one, or a guard in which a caller claimed with one, must not drag every
// counter to the end of its range.
func Plausible(token fencing.Token, now time.Time) bool {
	const far = 1 << 51
	return token.Valid() && token <= FloorAt(now)+far
}
