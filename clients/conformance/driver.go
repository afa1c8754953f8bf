package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/chaos"
)

// Client is a client under test: how its driver is run.
type Client struct {
	Name    string
	Command []string
	Env     []string
	AtOnce  int // how many of its drivers play scenarios at the same time; 8 unless set
}

// setup begins a scenario: the driver makes a new client.
type setup struct {
	Servers    string `json:"servers"`
	TimeoutMS  int64  `json:"timeout_ms"`
	PatienceMS int64  `json:"patience_ms"`
}

// result is a line that a driver writes: an event of an order, or what came of it.
type result struct {
	Event      string `json:"event,omitempty"`
	Result     string `json:"result,omitempty"`
	Token      int64  `json:"token,omitempty"`
	ValidityMS int64  `json:"validity_ms,omitempty"`
	Message    string `json:"message,omitempty"`
}

func (r result) String() string {
	if r.Token != 0 {
		return fmt.Sprintf("%s %d", r.Result, r.Token)
	}
	return r.Result
}

// unsupported is the result of an order that a language has no use for.
const unsupported = "unsupported"

// driver is a running driver, with a wall clock of its own.
type driver struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	lines     chan result
	stderr    bytes.Buffer
	moveClock func(time.Duration)
}

// orderTime is how long an order may take, also on a busy machine.
const orderTime = time.Minute

// start starts a driver; shim is the library that moves its clock.
func (c Client) start(t *testing.T, shim string) (*driver, error) {
	t.Helper()
	clock, _ := chaos.NewClock(t, t.TempDir(), shim, 0)
	d := &driver{cmd: exec.Command(c.Command[0], c.Command[1:]...), lines: make(chan result)}
	d.moveClock = func(by time.Duration) {
		if err := clock.Jump(by); err != nil {
			t.Error(err)
		}
	}
	d.cmd.Env = slices.Concat(os.Environ(), c.Env, clock.Env())
	d.cmd.Stderr = &d.stderr
	in, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.in = in
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go d.read(out)
	if err := d.begin([]string{"http://127.0.0.1:9"}, time.Second, time.Second); err != nil { // no scenario waits until it has started
		return nil, fmt.Errorf("%w\n%s", err, d.stop())
	}
	return d, nil
}

// begin has the driver make a client of the servers, with these limits of a try and of all tries.
func (d *driver) begin(servers []string, timeout, patience time.Duration) error {
	ready, err := d.tell(setup{Servers: strings.Join(servers, ","), TimeoutMS: timeout.Milliseconds(), PatienceMS: patience.Milliseconds()})
	if err == nil && ready.Result != "ready" {
		err = fmt.Errorf("the driver answered its set-up with %+v", ready)
	}
	return err
}

// read ends with the driver's output.
func (d *driver) read(out io.Reader) {
	defer close(d.lines)
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		var r result
		if err := json.Unmarshal(scanner.Bytes(), &r); err != nil {
			r = result{Result: fmt.Sprintf("broken: %q", scanner.Text())}
		}
		d.lines <- r
	}
}

// tell writes a line, and reads the next.
func (d *driver) tell(line any) (result, error) {
	raw, err := json.Marshal(line)
	if err != nil {
		return result{}, err
	}
	if _, err := d.in.Write(append(raw, '\n')); err != nil {
		return result{}, err
	}
	return d.next()
}

func (d *driver) next() (result, error) {
	select {
	case r, ok := <-d.lines:
		if !ok {
			return result{}, io.ErrUnexpectedEOF
		}
		return r, nil
	case <-time.After(orderTime):
		return result{}, fmt.Errorf("no answer within %s", orderTime)
	}
}

// obey gives the driver an order, and notes its events until the result.
func (d *driver) obey(o order) (step, error) {
	s := step{order: o, sent: time.Now()}
	r, err := d.tell(o)
	for ; err == nil; r, err = d.next() {
		now := time.Now()
		switch r.Event {
		case "began":
			s.began = now
		case "notified":
			s.notified = now
		case "ended":
			s.ended = now
		default:
			s.result, s.done = r, now
			return s, nil
		}
	}
	return s, err
}

// end waits for the end of a driver that gets no more orders.
func (d *driver) end() error {
	_ = d.in.Close()
	for range d.lines { // what comes now is of no interest
	}
	return d.cmd.Wait()
}

// stop ends the driver, at the latest after three seconds, and returns what it wrote to
// its standard error.
func (d *driver) stop() string {
	timer := time.AfterFunc(3*time.Second, func() { _ = d.cmd.Process.Kill() })
	defer timer.Stop()
	_ = d.end()
	return d.stderr.String()
}
