package testenv

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// EnvZooKeeper names the environment variable with a Java class path of ZooKeeper and its
// libraries, other than what is installed: of another version, say.
const EnvZooKeeper = "FENCELOCK_TEST_ZOOKEEPER"

// ZooKeeper is one ZooKeeper server.
type ZooKeeper struct {
	control
	dir      string
	process  *process
	port     int // of clients
	election [2]int
	via      map[*ZooKeeper][2]int // the ports by which this server reaches others, if not theirs
	lines    []*Proxy              // from and to the others
	releases []func()
}

// sharedZooKeeper is this process's server for paths of single tests. It ends with the
// process, and does not sync to disk.
var sharedZooKeeper = sync.OnceValues(func() (*ZooKeeper, error) {
	servers, err := launchZooKeeper(1, nil, "-Dzookeeper.forceSync=no")
	if err != nil {
		return nil, err
	}
	return servers[0], nil
})

// SharedZooKeeper is the address of a server that the tests of this process share: each
// uses a path of its own. For tests that kill it, see [StartZooKeeper].
func SharedZooKeeper(t testing.TB) string {
	t.Helper()
	NeedsServer(t)
	shared, err := sharedZooKeeper()
	if err != nil {
		t.Fatalf("testenv: start ZooKeeper: %v", err)
	}
	return shared.Addr()
}

// StartZooKeeper starts an ensemble of n servers for this test alone, and returns once
// it has a leader. It syncs to disk. Each server can be killed, frozen and restarted; a
// restart returns once that server is in the ensemble again. Flags are added to Java's.
func StartZooKeeper(t testing.TB, n int, flags ...string) []*ZooKeeper {
	t.Helper()
	return startZooKeeper(t, n, nil, flags...)
}

// StartZooKeeperApart starts an ensemble whose servers reach one another by lines, so that
// [ZooKeeper.Isolate] can cut them.
func StartZooKeeperApart(t testing.TB, n int, flags ...string) []*ZooKeeper {
	t.Helper()
	return startZooKeeper(t, n, func(target string) *Proxy { return StartProxy(t, target) }, flags...)
}

func startZooKeeper(t testing.TB, n int, line func(target string) *Proxy, flags ...string) []*ZooKeeper {
	t.Helper()
	NeedsServer(t)
	servers, err := launchZooKeeper(n, line, flags...)
	if err != nil {
		t.Fatalf("testenv: start ZooKeeper: %v", err)
	}
	for _, z := range servers {
		z.t = t
	}
	t.Cleanup(func() {
		for _, z := range servers {
			if t.Failed() {
				t.Logf("testenv: last words of %s:\n%s", z.name, tail(z.srv.logs(), 10))
			}
			if err := z.remove(); err != nil {
				t.Errorf("testenv: clean up %s: %v", z.name, err)
			}
		}
	})
	return servers
}

// ZooKeeperAddrs are the servers' addresses with commas between.
func ZooKeeperAddrs(servers []*ZooKeeper) string {
	var addrs []string
	for _, z := range servers {
		addrs = append(addrs, z.Addr())
	}
	return strings.Join(addrs, ",")
}

// ZooKeeperLeader is the server that leads now, and the others.
func ZooKeeperLeader(t testing.TB, servers []*ZooKeeper) (leader *ZooKeeper, followers []*ZooKeeper) {
	t.Helper()
	Eventually(t, readyWithin, func() error {
		leader, followers = nil, nil
		for _, z := range servers {
			if mode, _ := z.Mode(); mode == "leader" || mode == "standalone" {
				leader = z
			} else {
				followers = append(followers, z)
			}
		}
		if leader == nil {
			return errors.New("no server of the ensemble leads")
		}
		return nil
	})
	return leader, followers
}

// RestartZooKeeper starts the servers of an ensemble again that do not run, and returns
// once all are in it: one alone has no majority to join.
func RestartZooKeeper(t testing.TB, servers []*ZooKeeper) {
	t.Helper()
	for _, z := range servers {
		if !running(z.srv) {
			if err := z.srv.start(); err != nil {
				t.Fatalf("testenv: start %s: %v", z.name, err)
			}
		}
	}
	for _, z := range servers {
		if err := z.awaitReady(); err != nil {
			t.Fatalf("testenv: %s: %v", z.name, err)
		}
	}
}

// Isolate cuts the lines between this server and the others, or heals them. Clients still
// reach it.
func (z *ZooKeeper) Isolate(how Cut) {
	for _, line := range z.lines {
		line.Cut(how)
		if how == CutNone {
			line.Reset() // what a cut swallowed would be missing from the stream
		}
	}
}

// Addr is where clients connect.
func (z *ZooKeeper) Addr() string { return localAddr(z.port) }

// PID is the process of a server that runs.
func (z *ZooKeeper) PID() int { return z.process.cmd.Process.Pid }

// Mode is "leader", "follower" or "standalone"; an error if it serves no clients now.
func (z *ZooKeeper) Mode() (string, error) {
	return z.says("Mode")
}

// Requests is how many packets the server got, pings and those of testenv included.
func (z *ZooKeeper) Requests() int {
	z.t.Helper()
	text, err := z.says("Received")
	n, err2 := strconv.Atoi(text)
	if err := errors.Join(err, err2); err != nil {
		z.t.Fatal(err)
	}
	return n
}

// Zxid is that of the last transaction.
func (z *ZooKeeper) Zxid() int64 {
	z.t.Helper()
	text, err := z.says("Zxid")
	n, err2 := strconv.ParseInt(text, 0, 64)
	if err := errors.Join(err, err2); err != nil {
		z.t.Fatal(err)
	}
	return n
}

// DiskBytes is what the server's data take.
func (z *ZooKeeper) DiskBytes() (total int64) {
	z.t.Helper()
	err := filepath.WalkDir(z.dataDir(), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	if err != nil {
		z.t.Fatal(err)
	}
	return total
}

// says is what the server says of itself.
func (z *ZooKeeper) says(what string) (string, error) {
	answer, err := fourLetters(z.Addr(), "srvr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(answer) {
		if said, found := strings.CutPrefix(line, what+": "); found {
			return strings.TrimSpace(said), nil
		}
	}
	return "", errors.New(strings.TrimSpace(answer))
}

// Wipe deletes the data of a server that does not run.
func (z *ZooKeeper) Wipe() {
	z.t.Helper()
	if err := errors.Join(os.RemoveAll(z.dataDir()+"/version-2"), os.RemoveAll(z.dataDir()+"/acceptedEpoch")); err != nil {
		z.t.Fatal(err)
	}
}

// Backup copies the data of a server that does not run; the function puts it back.
func (z *ZooKeeper) Backup() (restore func()) {
	z.t.Helper()
	data, backup := filepath.Join(z.dataDir(), "version-2"), filepath.Join(z.dir, "backup")
	if err := errors.Join(os.RemoveAll(backup), os.CopyFS(backup, os.DirFS(data))); err != nil {
		z.t.Fatal(err)
	}
	return func() {
		z.t.Helper()
		if err := errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(backup))); err != nil {
			z.t.Fatal(err)
		}
	}
}

// Environment is what an operator knows of the server: DATA, where its data are.
func (z *ZooKeeper) Environment() []string { return []string{"DATA=" + z.dataDir()} }

func (z *ZooKeeper) dataDir() string { return filepath.Join(z.dir, "data") }

// fourLetters sends one of the server's four-letter commands.
func fourLetters(addr, command string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(command)); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

func (z *ZooKeeper) awaitReady() error {
	return poll(readyWithin, func() error {
		if !running(z.srv) {
			return fmt.Errorf("it ended: %s", tail(z.srv.logs(), 10))
		}
		_, err := z.Mode()
		return err
	})
}

func (z *ZooKeeper) remove() error {
	err := z.srv.kill()
	for _, release := range z.releases {
		release()
	}
	return errors.Join(err, os.RemoveAll(z.dir))
}

func launchZooKeeper(n int, line func(target string) *Proxy, flags ...string) ([]*ZooKeeper, error) {
	classPath, java, err := findZooKeeper()
	if err != nil {
		return nil, err
	}
	servers := make([]*ZooKeeper, 0, n)
	for range n {
		z, err := newZooKeeper()
		if err != nil {
			return nil, err
		}
		servers = append(servers, z)
	}
	if line != nil {
		setApart(servers, line)
	}
	for id, z := range servers {
		if err := z.configure(id+1, servers); err != nil {
			return nil, err
		}
		args := append([]string{
			"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true",
		}, flags...)
		z.process = &process{
			path: java, dir: z.dir, stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL,
			args: append(args, "-cp", classPath, "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(z.dir, "zoo.cfg")),
		}
		z.srv = z.process
		if err := z.srv.start(); err != nil {
			return nil, err
		}
	}
	for _, z := range servers {
		if err := z.awaitReady(); err != nil {
			return nil, err
		}
	}
	return servers, nil
}

// setApart makes a line from each server to each other one, for each of its two ports.
func setApart(servers []*ZooKeeper, line func(target string) *Proxy) {
	for _, from := range servers {
		from.via = make(map[*ZooKeeper][2]int)
		for _, to := range servers {
			if from == to {
				continue
			}
			var ports [2]int
			for i, port := range to.election {
				l := line(localAddr(port))
				ports[i] = l.listener.Addr().(*net.TCPAddr).Port //nolint:errcheck,forcetypeassert // it listens on TCP
				from.lines, to.lines = append(from.lines, l), append(to.lines, l)
			}
			from.via[to] = ports
		}
	}
}

func newZooKeeper() (*ZooKeeper, error) {
	dir, err := newServerDir("zookeeper")
	if err != nil {
		return nil, err
	}
	z := &ZooKeeper{dir: dir}
	for _, port := range []*int{&z.port, &z.election[0], &z.election[1]} {
		var release func()
		if *port, release, err = reservePort(); err != nil {
			return nil, err
		}
		z.releases = append(z.releases, release)
	}
	z.control = control{name: "ZooKeeper " + z.Addr(), await: z.awaitReady, shared: "other tests use it too; use StartZooKeeper"}
	return z, nil
}

// zooConfig has ZooKeeper's own defaults for the times, since they decide what a
// failover costs.
const zooConfig = `tickTime=2000
initLimit=10
syncLimit=5
dataDir=%s
clientPort=%d
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
`

func (z *ZooKeeper) configure(id int, ensemble []*ZooKeeper) error {
	var config strings.Builder
	fmt.Fprintf(&config, zooConfig, z.dataDir(), z.port)
	if len(ensemble) > 1 {
		for i, peer := range ensemble {
			ports, apart := z.via[peer]
			if !apart {
				ports = peer.election
			}
			fmt.Fprintf(&config, "server.%d=127.0.0.1:%d:%d\n", i+1, ports[0], ports[1])
		}
	}
	if err := os.Mkdir(z.dataDir(), 0o700); err != nil {
		return err
	}
	for path, text := range map[string]string{
		filepath.Join(z.dataDir(), "myid"): strconv.Itoa(id) + "\n",
		filepath.Join(z.dir, "zoo.cfg"):    config.String(),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// findZooKeeper finds or installs ZooKeeper and Java.
func findZooKeeper() (classPath, java string, err error) {
	if err := awaitInstall(); err != nil {
		return "", "", err
	}
	installed := func() bool {
		classPath = localZooKeeper()
		java, err = exec.LookPath("java")
		return classPath != "" && err == nil
	}
	if installed() {
		return classPath, java, nil
	}
	if err := aptInstall([]string{"zookeeper", "default-jre-headless"}, installed); err != nil {
		return "", "", fmt.Errorf("no ZooKeeper on this machine: %w", err)
	}
	return classPath, java, nil
}

// localZooKeeper is the class path of an installed ZooKeeper, or "". Its manifest names
// the libraries, except one that prints the log.
func localZooKeeper() string {
	if path := os.Getenv(EnvZooKeeper); path != "" {
		return path
	}
	const jar, logger = "/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"
	if isFile(jar) {
		return jar + ":" + logger
	}
	return ""
}
