package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
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
	taken     string // what it prints if its port is taken
}

// webProxy is a running one.
type webProxy struct {
	control
	webProgram
	addr, dir string
}

func startWebProxy(t testing.TB, program webProgram) webProxy {
	t.Helper()
	NeedsServer(t)
	p, err := onFreePort(func() (*webProxy, error) { return program.try(t) })
	if err != nil {
		t.Fatalf("testenv: %s: %v", program.name, err)
	}
	return *p
}

// URL is the address with http://.
func (p *webProxy) URL() string { return "http://" + p.addr }

func (program webProgram) try(t testing.TB) (*webProxy, error) {
	path, err := program.find()
	if err != nil {
		return nil, err
	}
	port, release, err := reservePort()
	if err != nil {
		return nil, err
	}
	t.Cleanup(release)
	dir, err := newServerDir(program.name)
	if err != nil {
		return nil, err
	}
	p := &webProxy{webProgram: program, addr: localAddr(port), dir: dir}
	text := strings.ReplaceAll(program.config(dir), proxyListen, p.addr)
	if err := os.WriteFile(filepath.Join(dir, program.file), []byte(text), 0o600); err != nil {
		return nil, err
	}
	p.control = control{t: t, name: program.name + " " + p.addr, await: p.awaitReady, srv: &process{
		path: path, args: program.args(dir), dir: dir, stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL,
	}}
	t.Cleanup(p.close)
	if err := p.srv.start(); err != nil {
		return nil, err
	}
	err = p.awaitReady()
	return p, err
}

// find is the program's path. Debian keeps such programs out of a user's PATH.
func (program webProgram) find() (string, error) {
	if err := awaitInstall(); err != nil {
		return "", err
	}
	if path := program.local(); path != "" {
		return path, nil
	}
	if err := aptInstall([]string{program.pkg}, func() bool { return program.local() != "" }); err != nil {
		return "", fmt.Errorf("no %s on this machine: %w", program.name, err)
	}
	return program.local(), nil
}

func (program webProgram) local() string {
	for _, name := range []string{program.name, "/usr/sbin/" + program.name} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func (p *webProxy) awaitReady() error {
	var early error
	err := poll(readyWithin, func() error {
		if !running(p.srv) {
			early = p.earlyExit()
			return nil
		}
		conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return errors.Join(early, err)
}

func (p *webProxy) earlyExit() error {
	err := fmt.Errorf("%s ended at once; it printed:\n%s", p.webProgram.name, tail(p.srv.logs(), 15))
	if strings.Contains(p.srv.logs(), p.taken) {
		return errors.Join(errPortTaken, err)
	}
	return err
}

func (p *webProxy) close() {
	if p.t.Failed() {
		p.t.Logf("testenv: last words of %s:\n%s", p.control.name, tail(p.srv.logs(), 10))
	}
	if err := errors.Join(p.srv.kill(), os.RemoveAll(p.dir)); err != nil {
		p.t.Errorf("testenv: clean up %s: %v", p.control.name, err)
	}
}
