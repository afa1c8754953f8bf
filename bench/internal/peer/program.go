package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/bench/internal/cpu"
)

// Program is one of fencelock's clients in another language. All its workers run in one process,
// which is started for each round.
type Program struct {
	name, url string
	env, argv []string

	mu   sync.Mutex
	pid  int           // of the present process; 0 between rounds
	used time.Duration // by the processes that have ended
}

// NewProgram returns a peer for the server at addr, whose driver is started by argv with
// additions to the environment.
func NewProgram(name, addr string, env []string, argv ...string) *Program {
	return &Program{name: name, url: "http://" + addr, env: env, argv: argv}
}

// Programs returns the clients in this tree, with the benchmark's drivers, for the server at
// addr.
func Programs(root, addr string) []*Program {
	driver := func(name string) string { return filepath.Join(root, "bench", "drivers", name) }
	python := []string{"PYTHONPATH=" + filepath.Join(root, "clients", "python", "src")}
	return []*Program{
		NewProgram("python-asyncio", addr, python, "python3", driver("driver.py"), "tasks"),
		NewProgram("python-threads", addr, python, "python3", driver("driver.py"), "threads"),
		NewProgram("typescript", addr, nil, "node", driver("driver.mjs"), filepath.Join(root, "clients", "typescript", "dist", "esm", "index.js")),
	}
}

// Installed returns an error if the driver's interpreter is missing.
func (p *Program) Installed() error {
	_, err := exec.LookPath(p.argv[0])
	return err
}

// Name returns the name in tables.
func (p *Program) Name() string { return p.name }

// Open fails, because all workers are in the program's process.
func (p *Program) Open(context.Context) (Session, error) {
	return nil, errors.New("its workers are in a process of their own")
}

// Close does nothing: a process ends with its round.
func (*Program) Close() error { return nil }

// CPU is the processor time of its processes.
func (p *Program) CPU() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return p.used
	}
	return p.used + cpu.Process(p.pid)
}

// Tally is what the workers of a program measured; times are in microseconds.
type Tally struct {
	Acquires []int64 `json:"acquires"`
	Pairs    []int64 `json:"pairs"`
	Busy     int     `json:"busy"`
	Failed   int     `json:"failed"`
	Error    string  `json:"error"`
}

// Started is a running program.
type Started struct {
	program *Program
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// Start starts the program with one worker for each resource. They end with ctx.
func (p *Program) Start(ctx context.Context, resources []string, ttl time.Duration) (*Started, error) {
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), p.env...), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches only this process, which then stops the program
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	job, err3 := json.Marshal(map[string]any{"url": p.url, "ttl_ms": ttl.Milliseconds(), "resources": resources})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	p.mu.Lock()
	p.pid = cmd.Process.Pid
	p.mu.Unlock()
	s := &Started{program: p, cmd: cmd, in: in, out: bufio.NewReader(out)}
	if err := s.begin(string(job)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// begin sends the program its job, and returns when the program starts it.
func (s *Started) begin(job string) error {
	if err := s.say(job); err != nil {
		return err
	}
	line, err := s.out.ReadString('\n')
	if err == nil && line != "ready\n" {
		err = fmt.Errorf("said %q", line)
	}
	return err
}

func (s *Started) say(line string) error {
	_, err := fmt.Fprintln(s.in, line)
	return err
}

// Measure starts measuring.
func (s *Started) Measure() error { return s.say("measure") }

// Finish ends the measurement, and returns its results after the workers have released their
// resources.
func (s *Started) Finish() (t Tally, err error) {
	if err := s.say("stop"); err != nil {
		return t, err
	}
	if err := json.NewDecoder(s.out).Decode(&t); err != nil {
		return t, fmt.Errorf("%s: what it measured: %w", s.program.name, err)
	}
	return t, nil
}

// Close ends the process.
func (s *Started) Close() error {
	_ = s.in.Close()
	err := s.cmd.Wait()
	s.program.mu.Lock()
	defer s.program.mu.Unlock()
	s.program.pid = 0
	s.program.used += s.cmd.ProcessState.UserTime() + s.cmd.ProcessState.SystemTime()
	return err
}
