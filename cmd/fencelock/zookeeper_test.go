package main

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/testenv"
)

// zkConn returns a client with the credentials ("user:password"), or without any.
func zkConn(t *testing.T, addr, credentials string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if credentials != "" {
		if err := conn.AddAuth("digest", []byte(credentials)); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

func zkCreate(t *testing.T, conn *zk.Conn, path, data string, acl []zk.ACL) {
	t.Helper()
	if _, err := conn.Create(path, []byte(data), 0, acl); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// oldZooKeeper responds to the command srvr as a server of version 3.4 does, and to nothing else.
func oldZooKeeper(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked := make([]byte, 4)
			if _, err := io.ReadFull(conn, asked); err == nil && string(asked) == "srvr" {
				_, _ = conn.Write([]byte("Zookeeper version: 3.4.13-6--1, built on Fri, 11 Nov 2022\nMode: standalone\n"))
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// A ZooKeeper that cannot be used is refused at the start and by fencelock check, and
// nothing is changed.
func TestZooKeeperThatCannotBeUsed(t *testing.T) {
	testenv.Long(t, "a ZooKeeper that cannot be used and is not named")
	t.Parallel()
	addr := testenv.SharedZooKeeper(t)
	root := "/unusable" + strconv.FormatInt(time.Now().UnixNano(), 36)
	conn := zkConn(t, addr, "locks:right")
	open := zk.WorldACL(zk.PermAll)
	zkCreate(t, conn, root, "", open)
	zkCreate(t, conn, root+"/theirs", "", open)
	zkCreate(t, conn, root+"/theirs/thing", "of somebody else", open)
	zkCreate(t, conn, root+"/protected", "", zk.AuthACL(zk.PermAll))
	zkCreate(t, conn, root+"/readable", "", zk.WorldACL(zk.PermRead))
	for name, c := range map[string]struct {
		store   string
		says    []string
		startOK bool // only what reads is refused
		checkOK bool // likewise: fencelock check writes nothing, so cannot know
	}{
		"wrong digest":       {store: "locks:hunter2@" + addr + root + "/protected", says: []string{"perhaps the password of the user locks", root + "/protected"}},
		"no digest":          {store: addr + root + "/protected", says: []string{"names no user and password", "setAcl"}},
		"no right to create": {store: addr + root + "/readable", says: []string{"no right to read, write, create and delete", root + "/readable"}, checkOK: true},
		"another's data":     {store: addr + root + "/theirs", says: []string{root + "/theirs", "not fencelock's", "a path of its own"}},
		"too old":            {store: oldZooKeeper(t) + "/locks", says: []string{"3.4.13", "3.6 is the oldest"}},
		"no path":            {store: "locks:hunter2@" + addr, says: []string{"should look like zookeeper://"}},
	} {
		t.Run(name, func(t *testing.T) {
			env := []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_STORE=zookeeper://" + c.store}
			for _, command := range []string{"serve", "check"} {
				code, said := outcome(t, env, command)
				if command == "check" && c.checkOK {
					continue
				}
				if code == 0 {
					t.Errorf("fencelock %s succeeds", command)
				}
				for _, part := range append(c.says, "FENCELOCK_STORE") {
					if !strings.Contains(said, part) {
						t.Errorf("fencelock %s does not say %q:\n%s", command, part, said)
					}
				}
				if strings.Contains(said, "hunter2") {
					t.Errorf("a password is shown:\n%s", said)
				}
			}
		})
	}
	for path, want := range map[string][]string{
		root: {"protected", "readable", "theirs"}, root + "/theirs": {"thing"}, root + "/protected": nil, root + "/readable": nil,
	} {
		names, _, err := conn.Children(path)
		slices.Sort(names)
		if err != nil || !slices.Equal(names, want) && len(names)+len(want) > 0 {
			t.Errorf("%s has %q (%v), want %q", path, names, err, want)
		}
	}
}

// Two servers share a path, which they protect from the first start on. A lease of one server can be used through the
// other, and the commands say on which engine the locks are.
func TestServersOnZooKeeper(t *testing.T) {
	t.Parallel()
	addr := testenv.SharedZooKeeper(t)
	path := "/servers" + strconv.FormatInt(time.Now().UnixNano(), 36)
	env := []string{"FENCELOCK_STORE=zookeeper://locks:secret@" + addr + path}
	a, b := start(t, env...), start(t, env...)
	lease := a.acquire(`{"resource":"orders/1","ttl_ms":60000}`)
	b.release(lease)
	if later := b.acquire(`{"resource":"orders/1","ttl_ms":60000}`); later.FencingToken <= lease.FencingToken {
		t.Errorf("token %d after %d", later.FencingToken, lease.FencingToken)
	}
	if _, _, err := zkConn(t, addr, "").Children(path + "/log"); err == nil {
		t.Error("everybody can read the locks")
	}
	for command, part := range map[string]string{"nodes": "zookeeper", "check": "ZooKeeper 3."} {
		if said := a.tool("", env, command); !strings.Contains(said.out, part) {
			t.Errorf("fencelock %s does not say %q: %+v", command, part, said)
		}
	}
}

// Servers serve again when the ensemble has another leader, with the earlier leases and
// rising tokens.
func TestSoakZooKeeperFailover(t *testing.T) {
	testenv.Soak(t, "a service that a ZooKeeper leader's death stops for too long")
	t.Parallel()
	ensemble := testenv.StartZooKeeper(t, 3)
	store := "FENCELOCK_STORE=zookeeper://" + testenv.ZooKeeperAddrs(ensemble) + "/fencelock"
	a, b := start(t, store), start(t, store)
	kept := a.acquire(`{"resource":"kept","ttl_ms":60000}`)
	loads := []*pgLoad{startLoad(a, 4), startLoad(b, 4)}
	back := func(what string, since time.Time) {
		t.Helper()
		for i, l := range loads {
			t.Logf("%s: server %d serves again after %s", what, i, l.back(since).Round(10*time.Millisecond))
		}
	}
	back("start", time.Now())
	leader, _ := testenv.ZooKeeperLeader(t, ensemble)
	leader.Kill()
	back("kill -9 of the leader", time.Now())
	leader.Restart()
	leader, followers := testenv.ZooKeeperLeader(t, ensemble)
	followers[0].Freeze()
	back("SIGSTOP of a follower", time.Now())
	followers[0].Thaw()
	leader.Freeze()
	back("SIGSTOP of the leader", time.Now())
	leader.Thaw()
	back("SIGCONT of the leader", time.Now())
	for _, l := range loads {
		l.end()
	}
	a.wants(a.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+kept.LeaseID), http.StatusOK)
	a.release(kept)
}

// A start on an ensemble without a leader says so, and what to do; so does check. Neither leaves a request that takes
// effect later.
func TestSoakZooKeeperWithoutALeader(t *testing.T) {
	testenv.Soak(t, "a service that grants while ZooKeeper has no leader")
	t.Parallel()
	ensemble := testenv.StartZooKeeper(t, 3)
	ensemble[1].Kill()
	ensemble[2].Kill()
	env := append(anyPorts(), "FENCELOCK_STORE=zookeeper://"+testenv.ZooKeeperAddrs(ensemble)+"/fencelock")
	for _, command := range []string{"serve", "check"} {
		code, said := outcome(t, env, command)
		for _, part := range []string{"has no leader: " + ensemble[0].Addr() + " runs", "start the other servers"} {
			if code == 0 || !strings.Contains(said, part) {
				t.Errorf("fencelock %s: code %d, without %q: %s", command, code, part, said)
			}
		}
	}
	testenv.RestartZooKeeper(t, ensemble)
	if made, _, err := zkConn(t, ensemble[0].Addr(), "").Exists("/fencelock"); err != nil || made {
		t.Errorf("the path was made (%v), %v", made, err)
	}
}

// A server without work costs little: under ten requests a second and 1 % of a core.
func TestSoakZooKeeperIdle(t *testing.T) {
	testenv.Soak(t, "what an idle server costs on ZooKeeper")
	z := testenv.StartZooKeeper(t, 1)[0]
	p := start(t, "FENCELOCK_STORE=zookeeper://"+z.Addr()+"/fencelock")
	p.release(p.acquire(`{"resource":"orders/1","ttl_ms":60000}`))
	const window = 5 * time.Second
	before, spent := z.Requests(), p.cpu()
	<-time.After(window)
	cores := (p.cpu() - spent).Seconds() / window.Seconds()
	requests := float64(z.Requests()-before) / window.Seconds()
	t.Logf("an idle server: %.1f requests a second, %.2f %% of a core", requests, 100*cores)
	if requests > 10 || cores > 0.01 {
		t.Errorf("an idle server costs %.1f requests a second and %.2f %% of a core", requests, 100*cores)
	}
}
