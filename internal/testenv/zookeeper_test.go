package testenv

import (
	"errors"
	"testing"
)

// An ensemble survives the loss of its leader, which comes back as a follower.
func TestZooKeeperEnsemble(t *testing.T) {
	Long(t, "an ensemble for tests that does not survive its leader; only tests of make verify start one")
	t.Parallel()
	servers := StartZooKeeper(t, 3)
	first, _ := ZooKeeperLeader(t, servers)
	first.Kill()
	if _, err := first.Mode(); err == nil {
		t.Error("a server that was killed answers")
	}
	second, _ := ZooKeeperLeader(t, servers)
	if second == first {
		t.Fatal("the killed server leads")
	}
	first.Restart()
	if mode, err := first.Mode(); mode != "follower" {
		t.Errorf("the killed server is %q (%v) after its restart", mode, err)
	}
	first.Freeze()
	if _, err := first.Mode(); err == nil {
		t.Error("a frozen server answers")
	}
	first.Thaw()
	Eventually(t, readyWithin, func() error {
		_, err := first.Mode()
		return err
	})
}

func TestSharedZooKeeper(t *testing.T) {
	t.Parallel()
	if a, b := SharedZooKeeper(t), SharedZooKeeper(t); a != b {
		t.Errorf("two servers: %s and %s", a, b)
	}
	if _, err := fourLetters(SharedZooKeeper(t), "srvr"); err != nil {
		t.Error(errors.Join(err))
	}
}
