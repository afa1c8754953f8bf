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

// nginxListen stands for the address in a configuration of StartNginx.
const nginxListen = "LISTEN"

// Nginx is an nginx of a test's own, which it may freeze, end and restart.
type Nginx struct {
	control
	addr, dir string
}

// StartNginx starts an nginx. http is what stands inside its http block, where LISTEN is
// replaced by the address that it listens on. It is one that is installed or, on Debian
// as root, one that it installs. Without one the test fails and says what to do; it is
// skipped only under -short.
func StartNginx(t testing.TB, http string) *Nginx {
	t.Helper()
	NeedsServer(t)
	n, err := onFreePort(func() (*Nginx, error) { return tryNginx(t, http) })
	if err != nil {
		t.Fatalf("testenv: nginx: %v", err)
	}
	return n
}

// URL is the address with http://.
func (n *Nginx) URL() string { return "http://" + n.addr }

func tryNginx(t testing.TB, http string) (*Nginx, error) {
	path, err := findNginx()
	if err != nil {
		return nil, err
	}
	port, release, err := reservePort()
	if err != nil {
		return nil, err
	}
	t.Cleanup(release)
	dir, err := newServerDir("nginx")
	if err != nil {
		return nil, err
	}
	n := &Nginx{addr: localAddr(port), dir: dir}
	text := nginxFile(dir, strings.ReplaceAll(http, nginxListen, n.addr))
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	n.control = control{t: t, name: "nginx " + n.addr, await: n.awaitReady, srv: &process{
		path: path, args: []string{"-p", dir, "-c", "nginx.conf", "-e", "stderr"}, dir: dir,
		stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL,
	}}
	t.Cleanup(n.close)
	if err := n.srv.start(); err != nil {
		return nil, err
	}
	return n, n.awaitReady()
}

// nginxFile has everything in the folder, and one process: a killed master would leave
// its workers behind.
func nginxFile(dir, http string) string {
	text := "daemon off;\nmaster_process off;\nerror_log stderr notice;\npid nginx.pid;\nevents {}\nhttp {\naccess_log access.log;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += fmt.Sprintf("%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
	}
	return text + http + "\n}\n"
}

// findNginx is the path of an nginx. Debian keeps it out of a user's PATH.
func findNginx() (string, error) {
	if err := awaitInstall(); err != nil {
		return "", err
	}
	if path := localNginx(); path != "" {
		return path, nil
	}
	if err := aptInstall([]string{"nginx-light"}, func() bool { return localNginx() != "" }); err != nil {
		return "", fmt.Errorf("no nginx on this machine: %w", err)
	}
	return localNginx(), nil
}

func localNginx() string {
	for _, name := range []string{"nginx", "/usr/sbin/nginx"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func (n *Nginx) awaitReady() error {
	var early error
	err := poll(readyWithin, func() error {
		if !running(n.srv) {
			early = n.earlyExit()
			return nil
		}
		conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", n.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return errors.Join(early, err)
}

func (n *Nginx) earlyExit() error {
	err := fmt.Errorf("nginx ended at once; it printed:\n%s", tail(n.srv.logs(), 15))
	if strings.Contains(n.srv.logs(), "Address already in use") {
		return errors.Join(errPortTaken, err)
	}
	return err
}

func (n *Nginx) close() {
	if n.t.Failed() {
		n.t.Logf("testenv: last words of nginx %s:\n%s", n.addr, tail(n.srv.logs(), 10))
	}
	if err := errors.Join(n.srv.kill(), os.RemoveAll(n.dir)); err != nil {
		n.t.Errorf("testenv: clean up nginx %s: %v", n.addr, err)
	}
}
