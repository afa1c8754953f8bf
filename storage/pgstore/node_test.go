package pgstore

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

// patient are options for tests that do more than sweep. They give a busy machine more time.
func patient() Options {
	opts := fast()
	opts.sweep.rest = 50 * time.Millisecond
	return opts
}

// onStore is a node on Postgres. Its restart gives the same rows another incarnation, which a restart of the server
// does not do.
func onStore(t *testing.T) nodetest.OnStore {
	t.Helper()
	url := testenv.Postgres(t).OwnerURL()
	return nodetest.OnStore{Store: openStore(t, url, patient()), Restart: func() {
		execSQL(t, url,
			`ALTER TABLE fencelock.rows RENAME TO former`,
			`CREATE TABLE fencelock.rows (LIKE fencelock.former INCLUDING ALL)`,
			`INSERT INTO fencelock.rows SELECT * FROM fencelock.former`,
			`DROP TABLE fencelock.former`)
	}}
}

func TestConformance(t *testing.T) {
	testenv.Long(t, "a Postgres store that passes storetest and breaks a rule of nodes")
	t.Parallel()
	onStore(t).Run(t)
}

func TestDifferential(t *testing.T) {
	testenv.Long(t, "such a store that breaks one in a sequence that nobody wrote down")
	t.Parallel()
	onStore(t).Differential(t)
}
