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

// proxyListen is replaced by the address in a program's arguments and configuration.
const proxyListen = "LISTEN"

// webProgram describes a web server or proxy that Debian has as a package.
type webProgram struct {
	name, pkg string
	file      string                    // the name of the configuration file in the program's folder
	args      func(dir string) []string // the arguments, with which it stays in the foreground as a single process
	config    func(dir string) string
	taken     string                          // the message that it prints if its port is taken
	find      func() (path string, err error) // finds the program; nil means an installed program or the package
}

// webProxy is a running webProgram.
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

// URL returns the address with http://.
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
