package testenv

import "testing"

// A leader that is cut off from the others leads no more; when that ends, it follows.
func TestEtcdIsolate(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t, 3, EtcdOptions{Lines: true})
	e.Ctl("put", "k", "1")
	former := e.Leader()
	former.Isolate()
	var next *EtcdMember
	Eventually(t, readyWithin, func() error {
		for _, m := range e.Members {
			if m != former && m.leads() {
				next = m
				return nil
			}
		}
		return errNoLeader
	})
	next.ctl("put", "k", "2")
	former.Rejoin()
	former.Await()
	if got := former.ctl("get", "k", "--print-value-only"); got != "2\n" {
		t.Errorf("the key is %q", got)
	}
}
