package pgguardtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/storage/pgguard"
)

// TestStatedLimits: a session that sets fencing.claimed itself writes without a trace, as the
// documentation says, and nothing where proofs are demanded.
func TestStatedLimits(t *testing.T) {
	th := newTheatre(t)
	if err := pgguard.SetProofKeys(t.Context(), th.url, proofKeys(t, keyOne)); err != nil {
		t.Fatal(err)
	}
	s := th.newStage(t, true, pgx.ReadCommitted)
	s.exec(`TRUNCATE fencing.proven`)
	s.claim34()
	forged := []string{`SELECT set_config('fencing.claimed', pg_current_xact_id() || ' accounts/1', true)`, write}
	before := s.status("table", "accounts")
	if err := tried(t, s.admn, forged...); err != nil {
		t.Error(err)
	}
	if mark, after := s.status("resource", "accounts/1").Mark, s.status("table", "accounts"); mark != 34 || after != before {
		t.Errorf("the mark is %d, and the status %+v, before %+v", mark, after, before)
	}
	s.exec(`SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => true)`)
	if err := tried(t, s.admn, forged...); sqlState(err) != pgguard.SQLStateMissing {
		t.Errorf("with proofs: %v", err)
	}
}
