package sim

import "testing"

// Clients that repeat, hang up and cancel leave no resource idle or locked for nobody for which
// others wait.
func TestImpatientClients(t *testing.T) {
	for one := range uint64(6) {
		plan := NewPlan(one+1, 3)
		impatient(&plan)
		r := Run(t, plan)
		if r.Violation != nil {
			tell(t, plan, r.Violation)
		}
		t.Logf("%d acquisitions, %s", r.Acquisitions, r.Vacancies)
	}
}
