package testenv

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// proxyListen stands for the address in a configuration.
const proxyListen = "LISTEN"

// webProgram is a reverse proxy that is installed as a Debian package.
type webProgram struct {
	name, pkg string
	file      string                    // of its configuration, in its folder
	args      func(dir string) []string // so that it stays in the foreground, in one process
	config    func(dir string) string
	taken     string                          // what it prints if its port is taken
	find      func() (path string, err error) // nil: it is installed
}

// webProxy is a running one.
type webProxy struct {
	control
	addr string
}

func startWebProxy(t testing.TB, program webProgram) webProxy {
	t.Helper()
	NeedsServer(t)
	s, err := startOwn(program.name, program.prepare)
	if err != nil {
		t.Fatalf("testenv: %s: %v", program.name, err)
	}
	s.cleanUp(t)
	return webProxy{addr: s.addr(), control: control{t: t, name: program.name + " " + s.addr(), srv: s, await: s.awaitReady}}
}

// URL is the address with http://.
func (p *webProxy) URL() string { return "http://" + p.addr }

func (program webProgram) prepare(s *own) error {
	if program.find == nil {
		program.find = func() (string, error) { return findInstalled(inSbin(program.name), program.pkg) }
	}
	path, err := program.find()
	if err != nil {
		return err
	}
	s.taken = program.taken
	s.answers = func() error {
		conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", s.addr())
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	args := program.args(s.dir)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], proxyListen, s.addr())
	}
	s.server = &process{
		path: path, args: args, dir: s.dir, stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL,
	}
	text := strings.ReplaceAll(program.config(s.dir), proxyListen, s.addr())
	return os.WriteFile(filepath.Join(s.dir, program.file), []byte(text), 0o600)
}
