package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	maxStart = 90 * time.Second // of the server: restarted Redis nodes are quarantined for the longest TTL
	maxAway  = 5 * time.Second  // for nodes to reply
	maxEnd   = 5 * time.Second  // for an orderly end, before it is killed
	maxLines = 8                // that are kept for an error
)

// process is a process of ours. The terminal's Ctrl-C reaches the director
// alone, which ends the others in order.
type process struct {
	name  string
	cmd   *exec.Cmd
	lines chan string // of both outputs; closed when it has ended
	last  []string    // of the lines; only after its end
}

// startProcess starts a program and gives it its input.
func startProcess(name string, cmd *exec.Cmd, input []byte) (*process, error) {
	p := &process{name: name, cmd: cmd, lines: make(chan string, 64)}
	ownGroup(cmd)
	cmd.Stdin = bytes.NewReader(input)
	output, err := cmd.StdoutPipe()
	cmd.Stderr = cmd.Stdout
	if err = errors.Join(err, cmd.Start()); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			line := scanner.Text()
			if !strings.HasPrefix(line, "{") { // no event, and not of the log
				p.last = append(p.last[max(0, len(p.last)-maxLines):], line)
			}
			p.lines <- line // the programs write no empty lines
		}
		_ = cmd.Wait() // cmd.ProcessState has the outcome
	}()
	return p, nil
}

// next is the next line of its output, or "" at its end.
func (p *process) next(ctx context.Context) (string, error) {
	select {
	case line := <-p.lines:
		return line, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// failure describes how it ended, and its last output. Only after its end.
func (p *process) failure() error {
	return fmt.Errorf("%s ended with %s\n%s", p.name, p.cmd.ProcessState, strings.Join(p.last, "\n"))
}

// signal does nothing if the process has ended.
func (p *process) signal(signal os.Signal) { _ = p.cmd.Process.Signal(signal) }

// end ends the process, stopped or not, and returns when it is gone.
func (p *process) end() {
	p.signal(syscall.SIGTERM)
	p.signal(continueSignal) // a stopped process takes no signal
	kill := time.AfterFunc(maxEnd, func() { p.signal(os.Kill) })
	defer kill.Stop()
	for range p.lines { // to their end
	}
}
