package etcdstore

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

func statusOf(tb testing.TB, s *Store) (status replica.Status) {
	tb.Helper()
	err := s.View(tb.Context(), func(tx replica.Tx) error { status = tx.Status(); return nil })
	if err != nil {
		tb.Fatal(err)
	}
	return status
}

func putRow(tb testing.TB, s *Store, key, value string) {
	tb.Helper()
	err := s.Update(tb.Context(), func(tx replica.Tx) error { tx.Put(key, []byte(value), 0); return nil })
	if err != nil {
		tb.Fatal(err)
	}
}

func getRow(tb testing.TB, s *Store, key string) (value string) {
	tb.Helper()
	err := s.View(tb.Context(), func(tx replica.Tx) error {
		raw, _ := tx.Get(key)
		value = string(raw)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return value
}

// A restore from a snapshot is another incarnation, for servers that ran during it and for those that start
// afterwards, even if the cluster id stays the same.
func TestRestore(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]string{"the same cluster id": "", "another cluster id": "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
			url := etcd.URL("locks")
			s := openStore(t, url)
			putRow(t, s, "k", "1")
			before, cluster := statusOf(t, s), clusterOf(t, s)
			snapshot := etcd.Snapshot()
			putRow(t, s, "k", "lost")
			etcd.Restore(snapshot, token)
			if same := clusterOf(t, s) == cluster; same != (token == "") {
				t.Errorf("the cluster id is the same: %t", same)
			}
			later := openStore(t, url)
			after := statusOf(t, later)
			if after.Incarnation == before.Incarnation {
				t.Error("a server that starts after the restore sees the earlier incarnation")
			}
			if got := statusOf(t, s); got != after {
				t.Errorf("a server that ran sees %v, one that started sees %v", got, after)
			}
			for _, store := range []*Store{s, later} {
				if got := getRow(t, store, "k"); got != "1" {
					t.Errorf("the row is %q, want that of the snapshot", got)
				}
				if young, err := store.Store.Young(t.Context()); young || err != nil {
					t.Errorf("young: %t, %v", young, err)
				}
			}
			for i := range 10 { // as many as etcd itself may log more or less when it starts
				putRow(t, later, "k", strconv.Itoa(i))
			}
			_ = s.Close()
			_ = later.Close()
			if again := statusOf(t, openStore(t, url)); again != after {
				t.Errorf("without another restore the incarnation is %v after %v", again, after)
			}
			second := etcd.Snapshot()
			etcd.Restore(second, "")
			if again := statusOf(t, openStore(t, url)); again == after {
				t.Error("a second restore is not noticed")
			}
		})
	}
}

func clusterOf(tb testing.TB, s *Store) uint64 {
	tb.Helper()
	resp, err := s.conn.get(tb.Context(), s.target.prefix+headName)
	if err != nil {
		tb.Fatal(err)
	}
	return resp.Header.ClusterId
}

// A restart of all members loses nothing, and is not another incarnation.
func TestRestart(t *testing.T) {
	t.Parallel()
	etcd := testenv.StartEtcd(t, 3, testenv.EtcdOptions{})
	s := openStore(t, etcd.URL("locks"))
	putRow(t, s, "k", "1")
	before := statusOf(t, s)
	for _, m := range etcd.Members {
		m.Kill()
	}
	for _, m := range etcd.Members {
		m.Start()
	}
	for _, m := range etcd.Members {
		m.Await()
	}
	later := openStore(t, etcd.URL("locks"))
	for _, store := range []*Store{s, later} {
		if now := statusOf(t, store); now != before || getRow(t, store, "k") != "1" {
			t.Errorf("%v and %q after a restart, before it %v", now, getRow(t, store, "k"), before)
		}
	}
}

// A running server and one that starts both notice that an operator deleted rows: another incarnation begins, and no
// row is read only in part.
func TestDeletions(t *testing.T) {
	t.Parallel()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	for name, del := range map[string]func(prefix string, s *Store) []string{
		"the log":   func(prefix string, _ *Store) []string { return []string{"--prefix", prefix + logName} },
		"its end":   func(_ string, s *Store) []string { return []string{lastEntry(t, s)} },
		"the head":  func(prefix string, _ *Store) []string { return []string{prefix + headName} },
		"the clock": nil,
	} {
		for _, runs := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, a server runs: %t", name, runs), func(t *testing.T) {
				url := etcd.URL(rand.Text())
				s := openStore(t, url)
				putRow(t, s, "k", "1")
				putRow(t, s, "l", "1")
				life, lost := statusOf(t, s), del != nil
				args := []string{s.target.prefix + clockName}
				if lost {
					args = del(s.target.prefix, s)
				}
				if !runs {
					_ = s.Close()
				}
				etcd.Ctl(append([]string{"del"}, args...)...)
				if !runs {
					s = openStore(t, url)
				}
				other := openStore(t, url)
				for _, server := range []*Store{s, other} {
					if same := statusOf(t, server) == life; same == lost {
						t.Errorf("the incarnation is the same: %t", same)
					}
					want := map[bool]string{true: "", false: "1"}[lost]
					if k, l := getRow(t, server, "k"), getRow(t, server, "l"); k != want || l != want {
						t.Errorf("rows %q and %q, want %q", k, l, want)
					}
				}
				if other.Young() && lost {
					t.Error("a server that starts takes it for new")
				}
				putRow(t, other, "k", "2")
				if k := getRow(t, s, "k"); k != "2" {
					t.Errorf("row %q, want 2", k)
				}
			})
		}
	}
}

func lastEntry(tb testing.TB, s *Store) string {
	tb.Helper()
	resp, err := s.conn.get(tb.Context(), s.target.prefix+logName, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	if err != nil {
		tb.Fatal(err)
	}
	return string(resp.Kvs[0].Key)
}

// However etcd is restored, it is another incarnation, for a server that ran during the restore and for one that
// starts afterwards.
func TestWaysOfARestore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members int
		restore func(*testing.T, *testenv.Etcd)
	}{
		"a snapshot, on three members": {3, func(t *testing.T, etcd *testenv.Etcd) {
			t.Helper()
			etcd.Restore(etcd.Snapshot(), "")
		}},
		"the database of a member, copied": {1, func(t *testing.T, etcd *testenv.Etcd) {
			t.Helper()
			m := etcd.Members[0]
			etcd.Snapshot() // has etcd write to the database what is in its log alone
			m.Kill()
			env := make(map[string]string)
			for _, setting := range m.Environment() {
				name, value, _ := strings.Cut(setting, "=")
				env[name] = value
			}
			db, err := os.ReadFile(filepath.Join(env["DATA"], "member", "snap", "db"))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "db")
			if err := os.WriteFile(file, db, 0o600); err != nil {
				t.Fatal(err)
			}
			etcd.RestoreBy(func(*testenv.EtcdMember) {
				etcd.Ctl("snapshot", "restore", file, "--skip-hash-check", "--name", env["NAME"], "--data-dir", env["DATA"],
					"--initial-cluster", env["CLUSTER"], "--initial-cluster-token", etcd.Token(), "--initial-advertise-peer-urls", env["PEER"])
			})
		}},
		"etcdutl": {3, func(t *testing.T, etcd *testenv.Etcd) {
			t.Helper()
			restoreByEtcdutl(t, etcd)
		}},
		"etcdutl, with a bump of the revision": {3, func(t *testing.T, etcd *testenv.Etcd) {
			t.Helper()
			restoreByEtcdutl(t, etcd, "--bump-revision", "1000000000", "--mark-compacted")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := testenv.StartEtcd(t, c.members, testenv.EtcdOptions{})
			s := openStore(t, etcd.URL("locks"))
			for range 20 { // a restore of a few commits may look like a restart
				putRow(t, s, "k", "1")
			}
			before := statusOf(t, s)
			c.restore(t, etcd)
			later := openStore(t, etcd.URL("locks"))
			after := statusOf(t, later)
			if after == before || statusOf(t, s) != after || later.Young() {
				t.Errorf("%v and %v after %v; young: %t", after, statusOf(t, s), before, later.Young())
			}
			putRow(t, later, "k", "2")
			if k := getRow(t, s, "k"); k != "2" {
				t.Errorf("row %q, want 2", k)
			}
		})
	}
}

// restoreByEtcdutl restores as the manual of etcd 3.5 and newer says.
func restoreByEtcdutl(t *testing.T, etcd *testenv.Etcd, options ...string) {
	t.Helper()
	etcdutl, err := exec.LookPath("etcdutl")
	if err != nil {
		t.Skip("etcdutl comes with etcd 3.5 and newer: make matrix")
	}
	file := etcd.Snapshot()
	etcd.RestoreBy(func(m *testenv.EtcdMember) {
		cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `exec "$0" snapshot restore "$@" --name "$NAME" --data-dir "$DATA" --initial-cluster "$CLUSTER" --initial-cluster-token "$TOKEN" --initial-advertise-peer-urls "$PEER"`, etcdutl, file}, options...)...)
		cmd.Env = append(append(os.Environ(), m.Environment()...), "TOKEN="+etcd.Token())
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("etcdutl: %v\n%s", err, said)
		}
	})
}

// The facts about the raft log and the revision show a restore, also one with --bump-revision, which only newer
// versions of etcd have.
func TestOrigins(t *testing.T) {
	t.Parallel()
	const cluster = 0xabc
	then := origin{cluster: cluster, atLeast: 50, atMost: 52}
	for name, c := range map[string]struct {
		now            origin
		lost, restored bool
	}{
		"it goes on":                  {origin{cluster, 70, 71}, false, false},
		"nothing was logged since":    {origin{cluster, 50, 50}, false, false},
		"another cluster":             {origin{0xdef, 70, 71}, true, false},
		"restored":                    {origin{cluster, -995, -990}, true, true},
		"restored, with a bump":       {origin{cluster, -1_000_000_995, -1_000_000_990}, true, true},
		"restored when it was young":  {origin{cluster, 3, 4}, true, false},
		"restored under another name": {origin{0xdef, -995, -990}, true, true},
	} {
		lost, err := c.now.follows(then.String())
		if err != nil || lost != c.lost || c.now.restored() != c.restored {
			t.Errorf("%s: lost: %t, restored: %t, %v", name, lost, c.now.restored(), err)
		}
	}
	if _, err := then.follows("anything"); err == nil {
		t.Error("an origin that cannot be read is read")
	}
}
