package replica

import (
	"crypto/rand"
	"encoding/base64"
	"math"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// viewBits is by how many bits a bootstrap's epoch is shifted from its Unix milliseconds, as in a bootstrap of
// several nodes, which fills them with random bits.
const viewBits = 10

// Open prepares the node. With bootstrap, an empty node becomes a cluster of its own, above every token that
// was ever granted at less than half a million leases of a resource a second (rule 12). floor raises the
// high-water mark, unless no cluster can have reached it, because a guard accepts any token that its callers
// make up.
func (t *Txn) Open(bootstrap bool, floor fencing.Token) {
	if bootstrap && t.rec.empty() {
		now := t.tx.Now()
		t.rec.Admitted = t.status.Incarnation
		t.rec.Epoch = node.Epoch(now.UnixMilli()) << viewBits
		t.rec.Bootstrapped = t.rec.Epoch
		t.rec.HighWater = node.FloorAt(now)
		var random [node.MinSecretBytes]byte
		_, _ = rand.Read(random[:]) // never fails
		t.rec.Secrets = node.NewSecrets(t.rec.Epoch, random)
	}
	if node.Plausible(floor, t.tx.Now()) {
		t.rec.HighWater = max(t.rec.HighWater, floor)
	}
}

// Observe looks at the node.
func (t *Txn) Observe() node.Observation {
	seen := node.Observation{
		Incarnation: t.status.Incarnation, Unfit: t.status.Unfit, Admitted: t.status.Unfit == "" && t.admitted(),
		Cluster: t.rec.cluster(), Epoch: t.rec.Epoch, Staged: t.rec.Staged, Marks: t.rec.marks(),
		Empty: t.rec.empty(), Note: t.rec.Note,
	}
	if t.weak(AdmitsAnyQuarantine) {
		seen.Note = "one and the same"
	}
	return seen
}

// rewrite writes the record unchanged, to prove that the store can be written.
func (t *Txn) rewrite() error {
	if !t.rec.empty() {
		t.tx.Put(recordKey, t.rec.encode(), 0)
	}
	return nil
}

// InstallEpoch installs an epoch and returns the marks.
func (t *Txn) InstallEpoch(epoch node.Epoch) (node.Marks, error) {
	switch {
	case !t.open():
		return node.Marks{}, node.ErrNotAdmitted
	case t.rec.Epoch > epoch, t.rec.Epoch == epoch && !t.weak(SharesEpochs):
		return node.Marks{}, &node.StaleEpochError{Epoch: t.rec.Epoch}
	}
	if !t.weak(InstallsNoEpoch) {
		t.rec.Epoch = epoch
	}
	return t.rec.marks(), nil
}

// reading is the gate of fenced reads: the node must be in exactly this epoch.
func (t *Txn) reading(epoch node.Epoch) error {
	switch {
	case !t.open():
		return node.ErrNotAdmitted
	case t.rec.Epoch != epoch && !t.weak(ReadsInAnyEpoch|InstallsNoEpoch):
		return &node.StaleEpochError{Epoch: t.rec.Epoch}
	}
	return nil
}

// Survey lists a page of locks.
func (t *Txn) Survey(epoch node.Epoch, cursor string) (locks []node.CarriedLock, next string, err error) {
	if err := t.reading(epoch); err != nil {
		return nil, "", err
	}
	rows, next, err := t.page("", cursor, t.m.rules.Page)
	for _, row := range rows {
		l, ok := decodeLock(row.Value)
		if !ok {
			return nil, "", Unreadable(row.Key)
		}
		locks = append(locks, node.CarriedLock{
			Resource: row.Key[len(lockPrefix):], Owner: l.owner, Grant: l.grant,
			Remaining: whole(row.Left), TTL: l.ttl, Meta: l.meta, Keyed: l.keyed(),
		})
	}
	return locks, next, err
}

// Scan lists a page of locked resources.
func (t *Txn) Scan(prefix, cursor string, limit int) (resources []string, next string, err error) {
	if !t.open() {
		return nil, "", node.ErrNotAdmitted
	}
	rows, next, err := t.page(prefix, cursor, min(max(limit, 1), t.m.rules.Page))
	for _, row := range rows {
		resources = append(resources, row.Key[len(lockPrefix):])
	}
	return resources, next, err
}

// Servers lists the servers whose heartbeats have not expired.
func (t *Txn) Servers() (servers []string) {
	for _, row := range t.tx.Range(serverPrefix, after(serverPrefix), math.MaxInt) {
		servers = append(servers, row.Key[len(serverPrefix):])
	}
	return servers
}

// page lists locks after the cursor, which is the last resource of the previous page as URL-safe text.
func (t *Txn) page(prefix, cursor string, limit int) (rows []Row, next string, err error) {
	last, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return nil, "", &lockcore.FieldError{Field: "cursor", Reason: "must be the next_cursor of an earlier page"}
	}
	from, to := LockKey(prefix), after(LockKey(prefix))
	if cursor != "" {
		from = max(from, LockKey(string(last))+"\x00")
	}
	rows = t.tx.Range(from, to, limit+1)
	if len(rows) > limit {
		rows = rows[:limit]
		next = base64.RawURLEncoding.EncodeToString([]byte(rows[limit-1].Key[len(lockPrefix):]))
	}
	return rows, next, nil
}

// Counters reads effective counters.
func (t *Txn) Counters(epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	if err := t.reading(epoch); err != nil {
		return nil, err
	}
	counters := make([]fencing.Token, len(resources))
	for i, resource := range resources {
		counter, present := t.counter(resource)
		if _, left := t.lock(resource); left == 0 {
			counter = t.unlockedCounter(resource)
		}
		if present || !t.weak(SkipsMissing) {
			counters[i] = counter
		}
	}
	return counters, nil
}

// Quarantine records the note by which this quarantine is known.
func (t *Txn) Quarantine(note string) error {
	switch {
	case !t.rec.empty() && t.rec.cluster() != *t.m.cluster.Load():
		return node.ErrForeign
	case t.status.Unfit != "", t.admitted():
		return node.ErrRaced
	case t.rec.Note == "":
		t.rec.Note = note
	}
	return nil
}

// Expel withdraws the admission.
func (t *Txn) Expel(incarnation string, epoch node.Epoch, note string) error {
	if !t.open() || t.rec.Epoch != epoch || incarnation != t.status.Incarnation {
		return node.ErrRaced
	}
	t.rec.Admitted, t.rec.Note = "", note
	return nil
}

// Stage purges the node for an admission.
func (t *Txn) Stage(a node.Admission) error {
	if err := t.stageable(a); err != nil {
		return err
	}
	if a.Epoch == a.Bootstrapped && t.weak(ForgetsFloor) {
		a.Floor = 0
	}
	if !t.weak(KeepsOnStaging) {
		t.tx.Purge()
	}
	note := t.note()
	t.read = record{} // the row was purged
	t.rec = record{
		Nodes: a.Cluster.Nodes, Hash: a.Cluster.Hash, Staged: a.Epoch, Note: note,
		MaxTTL: t.rec.MaxTTL, HighWater: max(t.rec.HighWater, a.Floor),
	}
	return nil
}

func (t *Txn) stageable(a node.Admission) error {
	empty := t.rec.empty()
	switch {
	case t.status.Unfit != "", !t.pinned(a), a.OnlyIfEmpty && !empty:
		return node.ErrRaced
	case !empty && t.rec.cluster() != a.Cluster:
		return node.ErrForeign
	case !t.waited(a), t.admitted() && t.rec.Epoch >= a.Bootstrapped, t.rec.Staged > a.Epoch && !t.weak(ForgetsStaging):
		return node.ErrRaced
	}
	return nil
}

// pinned reports that the node is in the incarnation to which the admission refers (rule 10).
func (t *Txn) pinned(a node.Admission) bool {
	return a.Incarnation == t.status.Incarnation || t.weak(AdmitsAnyIncarnation)
}

// waited reports that the quarantine is the one for which the admission waited (rule 13).
func (t *Txn) waited(a node.Admission) bool {
	weak := AdmitsAnyQuarantine | AdmitsAnyIncarnation
	if t.admitted() {
		weak = StagesAdmitted
	}
	return a.Note == t.note() || t.weak(weak)
}

// note returns what an admission must name: the note of the quarantine, or the MissedNote of a node that
// missed a bootstrap.
func (t *Txn) note() string {
	if t.admitted() {
		return node.MissedNote(t.rec.Epoch)
	}
	return t.rec.Note
}

// staged reports that this incarnation was staged for this admission (rule 10).
func (t *Txn) staged(a node.Admission) bool {
	return t.status.Unfit == "" && t.rec.Staged != 0 && t.rec.Staged == a.Epoch && t.pinned(a)
}

// Load writes carried counters and locks.
func (t *Txn) Load(a node.Admission, locks []node.CarriedLock) error {
	if late := t.weak(LoadsAdmitted) && t.open(); !t.staged(a) && !late {
		return node.ErrRaced
	}
	for i := range locks {
		t.carry(&locks[i])
	}
	return nil
}

// carry writes a carried counter, and the lock of a lease.
func (t *Txn) carry(carried *node.CarriedLock) {
	t.count(carried.Resource, carried.Counter)
	if carried.Owner == "" {
		return
	}
	l := lock{ttl: carried.TTL, grant: carried.Grant, owner: carried.Owner, meta: carried.Meta}
	if carried.Keyed {
		l.attempts = shared // the attempts are not carried
	}
	t.setLock(carried.Resource, l, max(carried.Remaining, time.Millisecond))
}

// InstallMap installs a map of the node sets (rule 30).
func (t *Txn) InstallMap(m node.Map) error {
	if err := t.reading(m.Epoch); err != nil {
		return err
	}
	m.Floor = max(t.rec.Map.Floor, m.Floor)
	t.rec.Map = m
	t.rec.HighWater = max(t.rec.HighWater, t.rec.Map.Floor)
	return nil
}

// Receive writes the locks that move to this set. If the resource was on this set earlier, that lock is
// deleted, and so is its counter, which then reads as the high-water mark.
func (t *Txn) Receive(epoch node.Epoch, name string, locks []node.CarriedLock) error {
	if err := t.reading(epoch); err != nil {
		return err
	}
	if !t.mapped(name) {
		return node.ErrNotAdmitted
	}
	for i := range locks {
		carried := &locks[i]
		if l, left := t.lock(carried.Resource); left > 0 && l.owner != carried.Owner {
			t.tx.Delete(LockKey(carried.Resource))
			t.tx.Delete(CounterKey(carried.Resource))
			if l.keyed() {
				t.tx.Delete(ScopeKey(l.owner))
			}
		}
		if carried.Owner != "" {
			t.carry(carried)
		}
	}
	return nil
}

// Admit opens the gate.
func (t *Txn) Admit(a node.Admission) error {
	if !t.staged(a) {
		return node.ErrRaced
	}
	t.rec.Admitted, t.rec.Staged, t.rec.Note = t.status.Incarnation, 0, ""
	t.rec.Epoch, t.rec.Bootstrapped = a.Epoch, a.Bootstrapped
	t.rec.MaxTTL, t.rec.Secrets = max(t.rec.MaxTTL, a.MaxTTL.Milliseconds()), a.Secrets
	t.rec.Map = a.Map
	return nil
}

// ReplaceSecrets replaces the cluster's secrets.
func (t *Txn) ReplaceSecrets(was, with node.Secrets) error {
	switch {
	case !t.open():
		return node.ErrNotAdmitted
	case t.rec.Secrets != was:
		return node.ErrRaced
	}
	t.rec.Secrets = with
	return nil
}

// RaiseMaxTTL records a longer TTL.
func (t *Txn) RaiseMaxTTL(ttl time.Duration) error {
	if !t.open() {
		return node.ErrNotAdmitted
	}
	t.rec.MaxTTL = max(t.rec.MaxTTL, ttl.Milliseconds())
	return nil
}
