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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// EnvZooKeeper names the environment variable with the Java class path of a ZooKeeper and its libraries. It
// replaces the installed ZooKeeper, for example by another version.
const EnvZooKeeper = "FENCELOCK_TEST_ZOOKEEPER"

// ZooKeeper is one ZooKeeper server.
type ZooKeeper struct {
	control
	own     *own
	process *process
	via     map[*ZooKeeper][]int // the ports by which this server reaches the others, if it reaches them through lines
	lines   []*Proxy             // the lines from and to the others
}

// sharedZooKeeper is the server on which single tests of this process use a path each. It ends with the
// process, and does not sync to disk.
var sharedZooKeeper = sync.OnceValues(func() (*ZooKeeper, error) {
	servers, err := launchZooKeeper(1, nil, "-Dzookeeper.forceSync=no")
	if err != nil {
		return nil, err
	}
	return servers[0], nil
})

// SharedZooKeeper returns the address of a server that the tests of this process share. Each test uses a path
// of its own. For tests that kill the server, see [StartZooKeeper].
func SharedZooKeeper(t testing.TB) string {
	t.Helper()
	NeedsServer(t)
	shared, err := sharedZooKeeper()
	if err != nil {
		t.Fatalf("testenv: start ZooKeeper: %v", err)
	}
	return shared.Addr()
}

// StartZooKeeper starts an ensemble of n servers for this test alone, and returns when it has a leader. The
// servers sync to disk. Each can be killed, frozen and restarted; Restart returns when the server is in the
// ensemble again. Flags are added to the arguments of Java.
func StartZooKeeper(t testing.TB, n int, flags ...string) []*ZooKeeper {
	t.Helper()
	return startZooKeeper(t, n, nil, flags...)
}

// StartZooKeeperApart starts an ensemble whose servers reach each other through lines, which
// [ZooKeeper.Isolate] can cut.
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
		z.own.cleanUp(t)
	}
	return servers
}

// ZooKeeperAddrs returns the servers' addresses, separated by commas.
func ZooKeeperAddrs(servers []*ZooKeeper) string {
	var addrs []string
	for _, z := range servers {
		addrs = append(addrs, z.Addr())
	}
	return strings.Join(addrs, ",")
}

// ZooKeeperLeader waits until a server leads, and returns that server and the others.
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

// RestartZooKeeper starts those servers of an ensemble that do not run, and returns when all are in the
// ensemble. A single server would have no majority.
func RestartZooKeeper(t testing.TB, servers []*ZooKeeper) {
	t.Helper()
	var down []*own
	for _, z := range servers {
		if !running(z.srv) {
			down = append(down, z.own)
		}
	}
	if err := startAll(down); err != nil {
		t.Fatalf("testenv: start ZooKeeper again: %v", err)
	}
}

// Isolate cuts the lines between this server and the others, or heals them. Clients still
// reach it.
func (z *ZooKeeper) Isolate(how Cut) {
	for _, line := range z.lines {
		if how == CutNone {
			line.heal() // what a cut swallowed would be missing from the stream
		} else {
			line.Cut(how)
		}
	}
}

// Addr returns the address for clients.
func (z *ZooKeeper) Addr() string { return z.own.addr() }

// PID returns the process id of a server that runs.
func (z *ZooKeeper) PID() int { return z.process.cmd.Process.Pid }

// Mode returns "leader", "follower" or "standalone"; an error if the server serves no clients now.
func (z *ZooKeeper) Mode() (string, error) {
	return z.says("Mode")
}

// Requests returns how many packets the server has received, including pings and those of testenv.
func (z *ZooKeeper) Requests() int {
	z.t.Helper()
	text, err := z.says("Received")
	n, err2 := strconv.Atoi(text)
	if err := errors.Join(err, err2); err != nil {
		z.t.Fatal(err)
	}
	return n
}

// Zxid returns the id of the last transaction.
func (z *ZooKeeper) Zxid() int64 {
	z.t.Helper()
	text, err := z.says("Zxid")
	n, err2 := strconv.ParseInt(text, 0, 64)
	if err := errors.Join(err, err2); err != nil {
		z.t.Fatal(err)
	}
	return n
}

// DiskBytes returns the size of the server's data on disk.
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

// says returns a value from the server's response to srvr.
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

// Backup copies the data of a server that does not run; restore copies them back.
func (z *ZooKeeper) Backup() (restore func()) {
	z.t.Helper()
	data, backup := filepath.Join(z.dataDir(), "version-2"), filepath.Join(z.own.dir, "backup")
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

// Environment returns the server's data folder as DATA.
func (z *ZooKeeper) Environment() []string { return []string{"DATA=" + z.dataDir()} }

func (z *ZooKeeper) dataDir() string { return filepath.Join(z.own.dir, "data") }

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

func launchZooKeeper(n int, line func(target string) *Proxy, flags ...string) (servers []*ZooKeeper, err error) {
	classPath, java, err := findZooKeeper()
	if err != nil {
		return nil, err
	}
	args := append([]string{
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true",
	}, flags...)
	args = append(args, "-cp", classPath, "org.apache.zookeeper.server.quorum.QuorumPeerMain")
	const others = 2 // an ensemble's ports for followers and for elections
	_, err = startOwns("ZooKeeper", n, others, func(all []*own) error {
		servers = nil
		for _, s := range all {
			servers = append(servers, newZooKeeper(s))
		}
		if line != nil {
			setApart(servers, line)
		}
		for id, z := range servers {
			if err := z.configure(id+1, servers); err != nil {
				return err
			}
			z.process = &process{
				path: java, dir: z.own.dir, stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL,
				args: append(slices.Clip(args), filepath.Join(z.own.dir, "zoo.cfg")),
			}
			z.own.server = z.process
		}
		return nil
	})
	return servers, err
}

// setApart makes a line from each server to each other server, for each of that server's two ports.
func setApart(servers []*ZooKeeper, line func(target string) *Proxy) {
	for _, from := range servers {
		from.via = make(map[*ZooKeeper][]int)
		for _, to := range servers {
			if from == to {
				continue
			}
			var ports []int
			for _, port := range to.own.others {
				l := line(localAddr(port))
				ports = append(ports, l.listener.Addr().(*net.TCPAddr).Port) //nolint:errcheck,forcetypeassert // it listens on TCP
				from.lines, to.lines = append(from.lines, l), append(to.lines, l)
			}
			from.via[to] = ports
		}
	}
}

// newZooKeeper makes a server of an ensemble, which is not configured yet.
func newZooKeeper(s *own) *ZooKeeper {
	z := &ZooKeeper{own: s}
	s.answers = func() error { _, err := z.Mode(); return err }
	z.control = control{name: "ZooKeeper " + s.addr(), srv: s, await: s.awaitReady, shared: "other tests use it too; use StartZooKeeper"}
	return z
}

// zooConfig uses ZooKeeper's own default times, because they determine how long a failover takes.
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
	fmt.Fprintf(&config, zooConfig, z.dataDir(), z.own.port)
	if len(ensemble) > 1 {
		for i, peer := range ensemble {
			ports, apart := z.via[peer]
			if !apart {
				ports = peer.own.others
			}
			fmt.Fprintf(&config, "server.%d=127.0.0.1:%d:%d\n", i+1, ports[0], ports[1])
		}
	}
	if err := os.Mkdir(z.dataDir(), 0o700); err != nil {
		return err
	}
	for path, text := range map[string]string{
		filepath.Join(z.dataDir(), "myid"):  strconv.Itoa(id) + "\n",
		filepath.Join(z.own.dir, "zoo.cfg"): config.String(),
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

// ZooKeeperCLI returns a folder with zkCli.sh.
func ZooKeeperCLI(t testing.TB) (dir string) {
	t.Helper()
	classPath, java, err := findZooKeeper()
	dir = t.TempDir()
	if err == nil {
		script := fmt.Sprintf("#!/bin/sh\nexec %s -cp %s org.apache.zookeeper.ZooKeeperMain \"$@\"\n", java, classPath)
		err = os.WriteFile(filepath.Join(dir, "zkCli.sh"), []byte(script), 0o700)
	}
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return dir
}

// localZooKeeper returns the class path of an installed ZooKeeper, or "". The manifest of its jar names the
// libraries, except the one that prints the log.
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
