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
	maxStart = 90 * time.Second // how long the server may take to start: restarted Redis nodes are quarantined for the longest TTL
	maxAway  = 5 * time.Second  // how long the nodes may take to reply
	maxEnd   = 5 * time.Second  // how long a process may take to end before it is killed
	maxLines = 8                // the number of lines that an error quotes
)

// process is a process that the director started. The terminal's Ctrl-C reaches only the director, which
// then ends the other processes in order.
type process struct {
	name  string
	cmd   *exec.Cmd
	lines chan string // of standard output and standard error; closed after the process has ended
	last  []string    // the last lines; valid only after lines is closed
}

// startProcess starts a program and writes its input.
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
			if !strings.HasPrefix(line, "{") { // neither an event nor a line of the JSON log
				p.last = append(p.last[max(0, len(p.last)-maxLines):], line)
			}
			p.lines <- line // the programs write no empty lines
		}
		_ = cmd.Wait() // cmd.ProcessState has the outcome
	}()
	return p, nil
}

// next returns the next line of output, or "" after the last.
func (p *process) next(ctx context.Context) (string, error) {
	select {
	case line := <-p.lines:
		return line, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// failure describes how the process ended, with its last output. It must be called only after the process
// has ended.
func (p *process) failure() error {
	return fmt.Errorf("%s ended with %s\n%s", p.name, p.cmd.ProcessState, strings.Join(p.last, "\n"))
}

// signal sends a signal. It does nothing if the process has ended.
func (p *process) signal(signal os.Signal) { _ = p.cmd.Process.Signal(signal) }

// end ends the process, even if it is stopped, and returns after it has ended.
func (p *process) end() {
	p.signal(syscall.SIGTERM)
	p.signal(continueSignal) // a stopped process handles no other signals
	kill := time.AfterFunc(maxEnd, func() { p.signal(os.Kill) })
	defer kill.Stop()
	for range p.lines { // read until it has ended
	}
}
