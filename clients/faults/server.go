package faults

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Server is a server process that always has the same address.
type Server struct {
	bin, address string
	env          []string
	cmd          *exec.Cmd
}

// Start runs a server on its embedded defaults, with these additional settings, until the test ends.
func Start(t *testing.T, env ...string) *Server {
	t.Helper()
	return startServer(t, testenv.Program(t), append([]string{"FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "fencelock.db"), "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0"}, env...)...)
}

// Address returns the server's host and port.
func (s *Server) Address() string { return s.address }

func startServer(t *testing.T, bin string, env ...string) *Server {
	t.Helper()
	s := &Server{bin: bin, address: freeAddress(t), env: env}
	t.Cleanup(s.kill)
	s.start(t)
	return s
}

// freeAddress returns an address with a port below the range from which systems take the ports of outgoing
// connections. So no connection takes the port while the server is down.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(17000))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

func (s *Server) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(s.bin, "serve")
	s.cmd.Env = append(append(os.Environ(), s.env...), "FENCELOCK_LISTEN="+s.address)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() error {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (s *Server) kill() {
	if s.cmd != nil && s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

func (s *Server) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}
