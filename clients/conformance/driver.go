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
	"testing"
	"time"

	"github.com/fencelock/fencelock/chaos"
)

// Client is a client under test: how its driver is run.
type Client struct {
	Name    string
	Command []string
	Env     []string
	Pending bool // the rows in pending are played, too
	AtOnce  int  // how many of its drivers play at the same time; 8 if 0
}

// setup is the first line of a scenario: it makes the driver create a new client.
type setup struct {
	Servers    string  `json:"servers"`
	TimeoutMS  int64   `json:"timeout_ms"`
	PatienceMS int64   `json:"patience_ms"`
	Raises     []raise `json:"raises,omitempty"`
}

// result is a line that a driver writes: an event during an order, or the order's result.
type result struct {
	Event      string `json:"event,omitempty"`
	Result     string `json:"result,omitempty"`
	Token      int64  `json:"token,omitempty"`
	ValidityMS int64  `json:"validity_ms,omitempty"`
	Done       int    `json:"done,omitempty"`      // burst: the number of calls that were granted and released
	Kept       int    `json:"kept,omitempty"`      // burst: the number of leases still held at the end
	TimedOut   bool   `json:"timed_out,omitempty"` // the error is also the language's own error of a time limit
	Message    string `json:"message,omitempty"`
}

func (r result) String() string {
	switch {
	case r.Token != 0:
		return fmt.Sprintf("%s %d", r.Result, r.Token)
	case r.Result == "burst":
		return fmt.Sprintf("burst: %d calls done, %d leases kept", r.Done, r.Kept)
	case r.TimedOut:
		return r.Result + ", timed out"
	}
	return r.Result
}

// unsupported is the result of an order that makes no sense in the driver's language.
const unsupported = "unsupported"

// driver is a running driver, with a wall clock of its own.
type driver struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	lines     chan result
	stderr    bytes.Buffer
	moveClock func(time.Duration)
}

// orderTime is the time limit of an order. It is generous because the machine may be busy.
const orderTime = time.Minute

// start starts a driver; shim is the path of the library that moves the driver's clock.
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
	if _, err := d.begin(setup{Servers: "http://127.0.0.1:9", TimeoutMS: 1000, PatienceMS: 1000}); err != nil { // no scenario has to wait for its start
		return nil, fmt.Errorf("%w\n%s", err, d.stop())
	}
	return d, nil
}

// begin makes the driver create a client. It returns false if the client does not support the set-up.
func (d *driver) begin(s setup) (supported bool, err error) {
	ready, err := d.tell(s)
	for err == nil && ready.Result == "" { // a late event of the previous scenario
		ready, err = d.next()
	}
	if err == nil && ready.Result != "ready" && ready.Result != unsupported {
		err = fmt.Errorf("the driver answered its set-up with %+v", ready)
	}
	return ready.Result != unsupported, err
}

// read passes on the lines that the driver writes, until the driver closes its output.
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

// tell writes a line to the driver, and reads the next line that the driver writes.
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

// obey gives the driver an order, and records its events until the result.
func (d *driver) obey(o order) (step, error) {
	s := step{order: o, sent: time.Now()}
	r, err := d.tell(o)
	for ; err == nil; r, err = d.next() {
		if r.Event == "" {
			s.result, s.done = r, time.Now()
			return s, nil
		}
		s.note(r.Event)
	}
	return s, err
}

// note records that an event happens now. For a leader it keeps the times of the first term.
func (s *step) note(event string) {
	at := map[string]*time.Time{"began": &s.began, "notified": &s.notified, "ended": &s.ended}[event]
	if at != nil && s.terms < 2 && at.IsZero() {
		*at = time.Now()
	}
	switch event {
	case "began":
		s.terms++
	case "on_lost":
		s.lostCalls++
	}
}

// end closes the driver's input, and waits until the driver ends.
func (d *driver) end() error {
	_ = d.in.Close()
	for range d.lines { // results after the last order don't matter
	}
	return d.cmd.Wait()
}

// stop ends the driver, with a kill after three seconds, and returns what the driver wrote to standard
// error.
func (d *driver) stop() string {
	timer := time.AfterFunc(3*time.Second, func() { _ = d.cmd.Process.Kill() })
	defer timer.Stop()
	_ = d.end()
	return d.stderr.String()
}
