package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Crashes and restarts lose nothing that was committed, and keep the incarnation. A restore from a backup, and a loss
// of the data, are other incarnations, also for servers that start afterwards.
func TestSoakIncarnations(t *testing.T) {
	testenv.Soak(t, "a restart or a restore of ZooKeeper that counts as the wrong incarnation")
	t.Parallel()
	z := testenv.StartZooKeeper(t, 1)[0]
	url := Scheme + z.Addr() + "/fencelock"
	s := openStore(t, url, patient())
	if !s.Young() {
		t.Error("a new path is not young")
	}
	before := statusOf(t, s)
	putRow(t, s, "a", "1", 0)
	z.Kill()
	restore := z.Backup()
	z.Restart()
	if a, _ := getRow(t, s, "a"); a != "1" || statusOf(t, s) != before {
		t.Errorf("after a crash: row %q, %+v, was %+v", a, statusOf(t, s), before)
	}
	putRow(t, s, "a", "2", 0)
	putRow(t, s, "b", "2", 0)

	z.Kill()
	restore()
	z.Restart()
	restored := openStore(t, url, patient())
	for range 3 { // its log becomes as long as the one that was lost
		putRow(t, restored, "c", "1", 0)
	}
	now := statusOf(t, s)
	if a, _ := getRow(t, s, "a"); a != "1" || now.Incarnation == before.Incarnation {
		t.Errorf("after a restore: row %q, %+v, was %+v", a, now, before)
	}
	if seen := statusOf(t, restored); seen != now || young(t, restored) {
		t.Errorf("another server sees %+v, young: %t; want %+v", seen, young(t, restored), now)
	}

	z.Kill()
	z.Wipe()
	z.Restart()
	wiped := statusOf(t, s)
	if a, _ := getRow(t, s, "a"); a != "" || wiped.Incarnation == now.Incarnation || young(t, s) {
		t.Errorf("after a loss of everything: row %q, %+v, was %+v, young: %t", a, wiped, now, young(t, s))
	}
}

// Servers that do not accept requests as large as a commit may be are refused. The error says what to do.
func TestAJuteMaxbufferThatIsTooSmall(t *testing.T) {
	t.Parallel()
	z := testenv.StartZooKeeper(t, 1, "-Djute.maxbuffer=100000")[0]
	s, err := Open(t.Context(), Scheme+z.Addr()+"/fencelock", patient())
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, errBuffer) || !strings.Contains(err.Error(), "-Djute.maxbuffer=1048575") {
		t.Errorf("the error is %v", err)
	}
}

// When a leader is killed or frozen, no committed row is lost, and the store is away for as long as the ensemble is.
func TestSoakFailover(t *testing.T) {
	testenv.Soak(t, "a row that a ZooKeeper leader's death loses")
	t.Parallel()
	servers := testenv.StartZooKeeper(t, 3)
	url := Scheme + testenv.ZooKeeperAddrs(servers) + "/fencelock"
	s := openStore(t, url, Options{})
	before := statusOf(t, s)
	for name, fault := range map[string]func(*testenv.ZooKeeper) (heal func()){
		"kill -9 of the leader": func(z *testenv.ZooKeeper) func() {
			z.Kill()
			return z.Restart
		},
		"SIGSTOP of the leader": func(z *testenv.ZooKeeper) func() {
			z.Freeze()
			return z.Thaw
		},
	} {
		leader, _ := testenv.ZooKeeperLeader(t, servers)
		last := work(t, s, 0)
		began := time.Now()
		heal := fault(leader)
		last = work(t, s, last)
		t.Logf("%s: committed again after %.1fs", name, time.Since(began).Seconds())
		heal()
		testenv.Eventually(t, time.Minute, func() error {
			for _, z := range servers {
				if _, err := z.Mode(); err != nil {
					return err
				}
			}
			return nil
		})
		if n, _ := getRow(t, s, "n"); !atLeast(n, last) || statusOf(t, s) != before {
			t.Errorf("%s: row %s, at least %d were committed; %+v, was %+v", name, n, last, statusOf(t, s), before)
		}
	}
}

// work commits until the store has committed three times more than before. It returns how often it did in all.
func work(t *testing.T, s *Store, before int) (last int) {
	t.Helper()
	last = before
	testenv.Eventually(t, 2*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := increment(ctx, s, "n")
		if err == nil {
			last++
		}
		if last < before+3 {
			return errors.Join(fmt.Errorf("%d commits, want %d", last, before+3), err)
		}
		return nil
	})
	return last
}

func atLeast(text string, want int) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= want
}

// If one server of an ensemble is restored from a backup, nothing is lost: it reads what it lacks from the others. If
// a majority is restored, rows are lost, and that is another incarnation.
func TestSoakAPartOfAnEnsembleIsRestored(t *testing.T) {
	testenv.Soak(t, "a restored part of an ensemble that counts as the whole")
	t.Parallel()
	servers := testenv.StartZooKeeper(t, 3)
	s := openStore(t, Scheme+testenv.ZooKeeperAddrs(servers)+"/fencelock", patient())
	putRow(t, s, "a", "1", 0)
	before := statusOf(t, s)
	var restores []func()
	for _, z := range servers {
		z.Kill()
	}
	for _, z := range servers[:2] {
		restores = append(restores, z.Backup())
	}
	testenv.RestartZooKeeper(t, servers)
	putRow(t, s, "a", "2", 0)
	servers[0].Kill()
	restores[0]()
	servers[0].Restart()
	if a, _ := getRow(t, s, "a"); a != "2" || statusOf(t, s) != before {
		t.Errorf("after a restore of one of three: row %q, %+v, was %+v", a, statusOf(t, s), before)
	}
	for _, z := range servers {
		z.Kill()
	}
	for _, restore := range restores {
		restore()
	}
	testenv.RestartZooKeeper(t, servers[:2])
	if a, _ := getRow(t, s, "a"); a != "1" || statusOf(t, s).Incarnation == before.Incarnation {
		t.Errorf("after a restore of two of three: row %q, %+v, was %+v", a, statusOf(t, s), before)
	}
}
