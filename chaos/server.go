package chaos

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// exitWithin bounds how long a server may take to exit, or to report its address.
const exitWithin = 40 * time.Second

// server is a fencelock process that can be killed and restarted. It gets a different port each time, and
// clients look up its address at each connection.
type server struct {
	t    testing.TB
	name string
	env  []string
	log  *os.File

	address, admin atomic.Pointer[string]
	cmd            *exec.Cmd
	exited         chan struct{}
	frozen         bool
	mu             sync.Mutex
	outages        []outage
	gathering      gathering // collects requests of clients that send batches
}

// outage is a time in which one server cannot serve, though others can.
type outage struct{ from, to time.Time }

// gone begins an outage, and returns the function that ends it.
func (s *server) gone() (back func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.outages)
	s.outages = append(s.outages, outage{from: time.Now(), to: time.Now().Add(time.Hour)})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outages[i].to = time.Now()
	}
}

// newServer prepares a server with only these environment variables. It is stopped when the test ends.
func newServer(tb testing.TB, name string, env ...string) *server {
	tb.Helper()
	testenv.NeedsServer(tb)
	log, err := os.Create(filepath.Join(tb.TempDir(), name+".log"))
	if err != nil {
		tb.Fatal(err)
	}
	s := &server{t: tb, name: name, log: log}
	s.env = append([]string{
		"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_LOG_FORMAT=json", "FENCELOCK_ALLOWED_HOSTS=" + name,
	}, env...)
	tb.Cleanup(func() {
		s.kill()
		if tb.Failed() {
			tb.Logf("last words of %s:\n%s", name, s.lastWords())
		}
		_ = log.Close()
	})
	return s
}

// StartServer starts a server with only these environment variables, for runs that need no stand, and returns
// the URL of its API. It is stopped when the test ends.
func StartServer(tb testing.TB, env ...string) (url string) {
	tb.Helper()
	s := newServer(tb, "server", env...)
	s.start()
	return "http://" + *s.address.Load()
}

// lastWords is the end of the server's log.
func (s *server) lastWords() string {
	const most = 16 << 10
	info, err := s.log.Stat()
	if err != nil {
		return err.Error()
	}
	text := make([]byte, min(info.Size(), most))
	n, _ := s.log.ReadAt(text, info.Size()-int64(len(text)))
	return string(text[:n])
}

// start starts the process and returns when it has reported its address.
func (s *server) start(extra ...string) {
	s.t.Helper()
	cmd := exec.Command(testenv.Program(s.t), "serve")
	cmd.Env = append(append([]string{}, s.env...), extra...)
	cmd.Dir = s.t.TempDir()
	log := &listeningLine{rest: s.log, line: make(chan []byte, 1)}
	cmd.Stderr = log
	dieWithParent(cmd)
	started, exited := make(chan error, 1), make(chan struct{})
	go func() {
		// Linux sends the signal that ends an orphan when the thread that forked it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(exited)
	}()
	if err := <-started; err != nil {
		s.t.Fatal(err)
	}
	s.cmd, s.exited, s.frozen = cmd, exited, false
	s.listening(log.line)
}

// listening reads the server's address from the line of its log that contains it.
func (s *server) listening(line <-chan []byte) {
	s.t.Helper()
	select {
	case text := <-line:
		var said struct {
			Addr      string `json:"addr"`
			AdminAddr string `json:"admin_addr"`
		}
		if err := json.Unmarshal(text, &said); err != nil || said.Addr == "" {
			s.t.Fatalf("a line of %s does not say where it listens: %s", s.name, text)
		}
		s.address.Store(&said.Addr)
		s.admin.Store(&said.AdminAddr)
	case <-s.exited:
		s.t.Fatalf("%s ended at once:\n%s", s.name, s.lastWords())
	case <-time.After(exitWithin):
		s.t.Fatalf("%s does not say where it listens:\n%s", s.name, s.lastWords())
	}
}

// listeningLine passes a log on and hands out the line with the server's address. Other lines may come first,
// if the store had to be read again.
type listeningLine struct {
	rest io.Writer
	seen []byte
	line chan []byte
	done bool
}

func (l *listeningLine) Write(p []byte) (int, error) {
	if !l.done {
		l.seen = append(l.seen, p...)
		l.look()
	}
	return l.rest.Write(p)
}

func (l *listeningLine) look() {
	for line := range bytes.Lines(l.seen) {
		if bytes.Contains(line, []byte(`"msg":"listening"`)) && bytes.HasSuffix(line, []byte("\n")) {
			l.line <- line
			l.done = true
			return
		}
	}
}

// running reports whether the process lives, frozen or not.
func (s *server) running() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// kill ends the process as kill -9 does.
func (s *server) kill() {
	s.end(syscall.SIGKILL)
	s.frozen = false
}

// stop ends the process in order.
func (s *server) stop() { s.end(syscall.SIGTERM) }

func (s *server) end(sig syscall.Signal) {
	if !s.running() {
		return
	}
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.exited:
	case <-time.After(exitWithin):
		s.t.Errorf("%s does not end on %s", s.name, sig)
		_ = s.cmd.Process.Kill()
	}
}

// freeze suspends the process.
func (s *server) freeze() {
	_ = s.cmd.Process.Signal(syscall.SIGSTOP)
	s.frozen = true
}

// thaw resumes it.
func (s *server) thaw() {
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	s.frozen = false
}
