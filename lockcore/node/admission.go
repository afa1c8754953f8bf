package node

import (
	"context"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Admittee is a node from the view of a server that may admit it. An admission consists of Stage, any number
// of Loads, and Admit. Each call compares the values that the Admission pins with the node's present ones, so
// that at most one of several concurrent admissions completes.
type Admittee interface {
	// Join sets the caller's cluster. It is called once, before any other method. At every vote the node
	// compares the cluster with its admission record (rule 14).
	Join(c Cluster)
	// Observe reports the node's state and changes nothing.
	Observe(ctx context.Context) (Observation, error)
	// Quarantine begins the quarantine of a node that is not admitted (rule 13): it stores the note, unless
	// the node has one. A loss of the node's data deletes the note, and so does an admission. So a node that
	// was admitted and then lost its data again has a different note than a node that stayed in quarantine.
	// Errors: ErrRaced if the node is admitted, ErrForeign.
	Quarantine(ctx context.Context, note string) error
	// Stage begins an admission: it purges every lock, counter and queue (rule 11) and
	// sets the high-water mark to the larger of its own and a.Floor. Errors: ErrRaced
	// if the node has another note, is admitted (but see MissedNote) or is staged under
	// a larger epoch; ErrForeign.
	Stage(ctx context.Context, a Admission) error
	// Load writes counters, and the locks of entries with an Owner, on a node that is staged for a. It returns
	// ErrRaced if the node is not staged for a.
	Load(ctx context.Context, a Admission, locks []CarriedLock) error
	// Admit ends the admission of a node that is staged for a: from then on it votes in a.Epoch. It returns
	// ErrRaced if the node is not staged for a.
	Admit(ctx context.Context, a Admission) error
	// RaiseMaxTTL raises the longest TTL of the admission record to at least ttl. A server calls it before it
	// grants such a TTL. It may return ErrNotAdmitted.
	RaiseMaxTTL(ctx context.Context, ttl time.Duration) error
	// InstallMap installs the map on a node that is admitted in exactly m.Epoch (rule 30). The floor never
	// decreases, and afterwards the high-water mark is at least the floor. Errors: ErrStaleEpoch,
	// ErrNotAdmitted.
	InstallMap(ctx context.Context, m Map) error
	// Receive writes the locks that move to this set. The node must be admitted in exactly this epoch and have
	// the map with that name. Each entry replaces the resource's lock and counter; an entry without an Owner
	// deletes the lock. Errors: ErrStaleEpoch; ErrNotAdmitted, also if the node has another map.
	Receive(ctx context.Context, epoch Epoch, name string, locks []CarriedLock) error
	// ReplaceSecrets stores the secrets with if the admission record still holds the secrets was. Errors:
	// ErrNotAdmitted; ErrRaced if the record holds others.
	ReplaceSecrets(ctx context.Context, was, with Secrets) error
}

// Marks are the result of a fenced read, and a part of an Observation.
type Marks struct {
	HighWater    fencing.Token // the largest counter or token that the node ever saw
	MaxTTL       time.Duration // the longest TTL in use, from its admission record
	Bootstrapped Epoch         // the epoch of the last bootstrap in which it took part or after which it was admitted
	Secrets      Secrets       // the cluster's secrets, from its admission record
	Map          Map           // the map of the node sets
}

// Map is a node's record of the node sets over which resources are spread (rule 30). Its name determines which
// resources belong to this node's set. Servers vote under a name, and the node refuses votes under any other
// name. The zero Map belongs to a set whose map was never changed.
type Map struct {
	Name  string // see Op.Validate; may be empty
	Epoch Epoch  // the epoch in which it was installed
	// Floor is at least every token that another set granted before it gave resources to
	// this one. A counter below it reads as the floor while the resource is not locked.
	Floor fencing.Token
	// Generation numbers the maps of a cluster. Every run of a change writes a larger generation than that of
	// the map it started from. 0 means that the cluster's map was never changed, or that a version without
	// generations wrote it.
	Generation int64
}

// CarriedLock is a resource's state on its way from admitted nodes to a node that rejoins.
type CarriedLock struct {
	Resource  string
	Counter   fencing.Token // the effective counter, which Load writes; Survey leaves it 0
	Owner     string        // if "", only the counter is carried
	Grant     fencing.Token
	Remaining time.Duration
	TTL       time.Duration
	Meta      string
	Keyed     bool // it was, or may have been, created under an idempotency key
}

// Cluster identifies a node set. A node refuses servers that are configured with another set (rule 14).
type Cluster struct {
	Nodes int
	Hash  string // hash of the sorted node names
}

// Observation is a node's state at one moment.
type Observation struct {
	// Incarnation changes whenever the node may have lost state: at every restart,
	// promotion and fail-back. Redis calls it the replication id.
	Incarnation string
	// Admitted means that the admission record exists and names the present incarnation.
	Admitted bool
	Cluster  Cluster // from its record; zero if it has no record
	Epoch    Epoch   // from its record, whether or not it is admitted
	Staged   Epoch   // epoch of an unfinished admission; 0 if there is none
	Marks    Marks   // as far as they survived
	Empty    bool    // it holds nothing, or only the note of its quarantine
	Note     string  // note of its quarantine; "" without a quarantine
	// Version and Role are for display: the node's program ("Redis 7.2.4") and its role there ("master"). They
	// may be "".
	Version, Role string
	// Unfit says why the node must not vote and what an operator must change: it is a replica, evicts keys, is
	// shared with other programs, or is too old. "" if it may vote.
	Unfit string
}

// Admission is one attempt to admit a node.
type Admission struct {
	Incarnation string // as observed before the reads; if it has changed, the error is ErrRaced (rule 10)
	Note        string // as observed; for a node that missed a bootstrap, its MissedNote
	Epoch       Epoch
	// Bootstrapped is the epoch of the bootstrap from which Epoch descends; at most Epoch.
	Bootstrapped Epoch
	Cluster      Cluster
	Floor        fencing.Token // the high-water mark is raised to at least this
	MaxTTL       time.Duration // the longest TTL in use is raised to at least this
	Secrets      Secrets
	Map          Map  // the map that the node gets
	OnlyIfEmpty  bool // the operator declared the cluster new: ErrRaced if the node holds anything
}

// MissedNote replaces the note of a node that missed a bootstrap: it is admitted in epoch, which is smaller
// than Admission.Bootstrapped. Such a node may be staged while it is still in that epoch (rule 12). Stage
// writes the note into the node's data, so that the quarantine for which other servers wait stays the same.
//
// The note identifies one quarantine although it contains nothing random, because an incarnation is never
// admitted in the same epoch twice (rule 9). A server stages such a node under a larger epoch. A smaller epoch
// cannot be staged over that one, and Admit, which deletes the note, installs it. So a Stage that comes late
// or twice either finds this same quarantine or is refused. FLUSHALL deletes the epoch together with the note.
func MissedNote(epoch Epoch) string { return "missed " + strconv.FormatInt(int64(epoch), 10) }

// FloorAt is the smallest high-water mark of a cluster that is bootstrapped now (rule 12): the Unix time in
// microseconds. A lease uses two numbers (its grant, and another when it is released), so the clock stays
// ahead of any resource that is acquired less than half a million times a second. The result is below 2^53
// until the year 2255.
func FloorAt(now time.Time) fencing.Token { return fencing.Token(now.UnixMicro()) }

// Reachable reports whether the cluster can have reached this token (rule 23), from the view of a node with
// this high-water mark and this clock: the token is at most MaxTokensAhead above the larger of the two. A node
// refuses a confirm, an extend or a release with any other token, with ErrUnreachableToken.
func Reachable(token, highWater fencing.Token, now time.Time) bool {
	return token <= max(highWater, FloorAt(now))+MaxTokensAhead
}

// Plausible reports whether any cluster can have reached this token: it is at most 2^51 above the first token
// of a cluster that is bootstrapped now. A broken node that reports a larger token, or a guard on which a
// caller claimed with one, must not push every counter to the end of its range.
func Plausible(token fencing.Token, now time.Time) bool {
	const far = 1 << 51
	return token.Valid() && token <= FloorAt(now)+far
}
