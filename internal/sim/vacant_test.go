package sim

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Clients that repeat, hang up and cancel leave no resource idle or locked for nobody for which
// others wait.
func TestImpatientClients(t *testing.T) {
	testenv.Long(t, "a place that is kept for clients which gave up")
	testenv.Computes(t)
	for one := range uint64(3) {
		plan := NewPlan(one+1, 3)
		impatient(&plan)
		r := Run(t, plan)
		if r.Violation != nil {
			tell(t, plan, r.Violation)
		}
		t.Logf("%d acquisitions, %s", r.Acquisitions, r.Vacancies)
	}
}

// Polls that move between servers leave no resource free for which others wait: the place that a server keeps for a poll
// counts only until its key waits again, or has its lease. The whole time counts, since the waiters' own tries bound each.
func TestPollsBetweenServers(t *testing.T) {
	testenv.Long(t, "a place that keeps others out although its key waits at another server or had its lease")
	testenv.Computes(t)
	for one := range uint64(3) {
		plan := NewPlan(one+1, 3)
		polling(&plan)
		r := Run(t, plan)
		if r.Violation != nil {
			tell(t, plan, r.Violation)
		}
		const most = 200 * time.Millisecond // of a minute, and nearly always less than a fourth of that
		if idle := r.Vacancies.Idle; idle > most {
			t.Errorf("seed %d: a resource stood free for %s in all, although somebody waited", plan.Seed, idle)
		}
		t.Logf("%d acquisitions, %s", r.Acquisitions, r.Vacancies)
	}
}
