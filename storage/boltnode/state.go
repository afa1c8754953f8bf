package boltnode

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// format is the version of what the buckets hold.
const format = 1

// state is the node's record of itself.
type state struct {
	Format      int           `json:"format"`
	Epoch       uint64        `json:"epoch"`              // how often the file was opened
	Incarnation string        `json:"incarnation"`        // random, made with the file
	Admitted    string        `json:"admitted,omitempty"` // the incarnation that was admitted
	Nodes       int           `json:"nodes,omitempty"`
	Hash        string        `json:"hash,omitempty"`
	View        lockcore.View `json:"view,omitempty"`
	Founded     lockcore.View `json:"founded,omitempty"`
	Staged      lockcore.View `json:"staged,omitempty"` // the view of an admission under way
	Note        string        `json:"note,omitempty"`   // of its quarantine, until it is admitted
	MaxTTL      int64         `json:"max_ttl_ms,omitempty"`
	High        fencing.Token `json:"high,omitempty"`
}

func newState() state { return state{Format: format, Incarnation: rand.Text()} }

// viewBits is how far a founding's view is shifted from its Unix milliseconds:
// as wide as a founding of several nodes leaves for its random bits.
const viewBits = 10

// found makes the node a cluster of its own, above every token that came at
// fewer than a thousand leases of a resource a second (rule 12).
func (st *state) found(now time.Time) {
	st.Admitted = st.Incarnation
	st.View = lockcore.View(now.UnixMilli()) << viewBits
	st.Founded = st.View
	st.High = lockcore.FloorAt(now)
}

func (st *state) admitted() bool { return st.Admitted != "" && st.Admitted == st.Incarnation }

// note is what an admission must name: of the quarantine, or that it is away.
func (st *state) note() string {
	if st.admitted() {
		return lockcore.AwayNote(st.View)
	}
	return st.Note
}

func (st *state) cluster() lockcore.Cluster { return lockcore.Cluster{Nodes: st.Nodes, Hash: st.Hash} }

func (st *state) setCluster(c lockcore.Cluster) { st.Nodes, st.Hash = c.Nodes, c.Hash }

// empty: nothing was ever kept here but perhaps the note.
func (st *state) empty() bool {
	return *st == state{Format: st.Format, Epoch: st.Epoch, Incarnation: st.Incarnation, Note: st.Note}
}

// readState gives the zero state if there is none.
func readState(tx *bbolt.Tx) (st state, err error) {
	raw := tx.Bucket([]byte(metaBucket)).Get([]byte(stateKey))
	if raw == nil {
		return st, nil
	}
	if err := json.Unmarshal(raw, &st); err != nil {
		return st, fmt.Errorf("state: %w", err)
	}
	if st.Format != format {
		return st, fmt.Errorf("state has format %d, this program reads %d", st.Format, format)
	}
	return st, nil
}

func writeState(tx *bbolt.Tx, st state) error {
	raw, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return tx.Bucket([]byte(metaBucket)).Put([]byte(stateKey), raw)
}
