package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/fencelock/fencelock/chaos"
)

const (
	// startAtOnce is how many drivers start at the same time, before any scenario is played:
	// interpreters that start are what keeps a machine busy.
	startAtOnce = 2
	// playAtOnce is how many scenarios are played at the same time, each by one driver: they mostly wait.
	// A client may want fewer.
	playAtOnce = 8
)

// Run runs the clients through every scenario, and logs what a client did wrong, or else
// the table: what each client did.
func Run(t *testing.T, clients []Client) {
	t.Helper()
	rows := Table(t, clients)
	for _, r := range rows {
		if len(r.Wrong) > 0 {
			t.Errorf("%s, %s\ndid: %s\nwrong: %s\nwhy: %s", r.Client, r.Scenario, r.Did, strings.Join(r.Wrong, "\n       "), r.Why)
		}
	}
	if !t.Failed() {
		t.Logf("\n%s", text(rows))
	}
}

// Table runs the clients through every scenario, and returns a row for each of both, in
// the order of the scenarios.
func Table(t *testing.T, clients []Client) []Row {
	t.Helper()
	shim, err := chaos.BuildShim(t.TempDir())
	if err != nil {
		t.Fatalf("the clock of clients cannot be moved: %v", err)
	}
	late, err := watchLateness()
	if err != nil {
		t.Fatal(err)
	}
	defer late.end()
	rows := make([]Row, len(scenarios)*len(clients))
	for j, c := range clients {
		all := startDrivers(t, c, shim)
		atOnce(cap(all.idle), len(scenarios), func(i int) { rows[i*len(clients)+j] = all.row(scenarios[i], late) })
		all.end()
	}
	return rows
}

// atOnce calls do for 0 to n-1, some at the same time.
func atOnce(limit, n int, do func(int)) {
	var all sync.WaitGroup
	turn := make(chan struct{}, limit)
	for i := range n {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			do(i)
		})
	}
	all.Wait()
}

// Row is what one client did in one scenario.
type Row struct {
	Scenario, Client string
	Why              string   // what goes wrong for a client that does otherwise
	Did              string   // its calls with their outcomes, and what it said
	Wrong            []string // what was wrong; none if it did right
	Unsupported      bool     // the client has nothing of the kind

	late time.Duration // how late a right client may have been
}

func (r Row) verdict() string {
	switch {
	case r.Unsupported:
		return "—"
	case len(r.Wrong) > 0:
		return "WRONG"
	}
	return "right"
}

// drivers is a client's drivers. Each plays one scenario after the other.
type drivers struct {
	t      *testing.T
	client Client
	shim   string
	idle   chan *driver // nil for one that has to be started
}

func startDrivers(t *testing.T, c Client, shim string) *drivers {
	t.Helper()
	n := cmp.Or(c.AtOnce, playAtOnce)
	ds := &drivers{t: t, client: c, shim: shim, idle: make(chan *driver, n)}
	started := make([]*driver, n)
	atOnce(startAtOnce, n, func(i int) { started[i] = ds.start() })
	atOnce(n, n, func(i int) { ds.idle <- ds.used(started[i]) })
	return ds
}

// start returns nil for a driver that does not start, and fails the test.
func (ds *drivers) start() *driver {
	d, err := ds.client.start(ds.t, ds.shim)
	if err != nil {
		ds.t.Errorf("%s: %v", ds.client.Name, err)
	}
	return d
}

// used has a driver do once what it will be judged by: an interpreter or a virtual machine
// takes long for what it does the first time. It returns nil, and fails the test, if that fails.
func (ds *drivers) used(d *driver) *driver {
	if d == nil {
		return nil
	}
	for _, s := range firstUses {
		if _, err := ds.play(s, d); err != nil {
			ds.t.Errorf("%s: %v\n%s", ds.client.Name, err, d.stop())
			return nil
		}
	}
	return d
}

// end ends the drivers.
func (ds *drivers) end() {
	atOnce(cap(ds.idle), cap(ds.idle), func(int) {
		if d := <-ds.idle; d != nil {
			if said := d.stop(); said != "" {
				ds.t.Errorf("%s: a driver wrote to its standard error: %s", ds.client.Name, said)
			}
		}
	})
}

// row has a driver play the scenario, and judges what the client did.
func (ds *drivers) row(s scenario, late *lateness) Row {
	row := Row{Scenario: s.name, Client: ds.client.Name, Why: s.why}
	d := <-ds.idle
	if d == nil {
		d = ds.used(ds.start())
	}
	if d == nil {
		ds.idle <- nil
		row.Wrong = []string{"its driver did not start"}
		return row
	}
	begun, before := time.Now(), waits(d.cmd.Process.Pid)
	r, err := ds.play(s, d)
	driver := waited(d.cmd.Process.Pid, before)
	if err != nil || s.last() {
		if said := d.stop(); said != "" {
			err = errors.Join(err, fmt.Errorf("the driver wrote to its standard error: %s", said))
		}
		d = nil
	}
	ds.idle <- d
	kit := late.since(begun)
	r.late += kit + driver
	row.late = r.late
	row.Did, row.Unsupported = r.trace()+" → "+r.said(), r.unsupported()
	switch {
	case err != nil:
		row.Wrong = []string{err.Error()}
	case !row.Unsupported:
		row.Wrong = r.judge()
	}
	if len(row.Wrong) > 0 && kit+driver > usualLateness {
		row.Wrong = append(row.Wrong, fmt.Sprintf("the machine: meanwhile this process was late by %s, and the client's waited %s for a processor",
			kit.Round(time.Millisecond), driver.Round(time.Millisecond)))
	}
	return row
}

func (r run) unsupported() bool {
	for _, s := range r.steps {
		if s.result.Result == unsupported {
			return true
		}
	}
	return false
}

// last: the scenario leaves the driver in a state that is not for another one.
func (s scenario) last() bool {
	return slices.ContainsFunc(s.faults, func(f fault) bool { return f.clock != 0 }) || slices.ContainsFunc(s.orders, func(o order) bool { return o.Do == "fork" })
}

// play starts the service, and gives the driver its orders, one after the other.
func (ds *drivers) play(s scenario, d *driver) (r run, err error) {
	s.moveClock = d.moveClock
	v := startService(ds.t, s)
	defer v.stop()
	r = run{scenario: s, service: v, late: usualLateness}
	if err := d.begin(v.urls, cmp.Or(s.timeout, 600*time.Millisecond), cmp.Or(s.patience, 3*time.Second)); err != nil {
		return r, err
	}
	begun := time.Now()
	for i, o := range s.orders {
		if o.Do == letGo.Do && r.steps[i-1].result.Result != "acquired" { // it has none to release
			break
		}
		v.begin(i)
		done, err := d.obey(o)
		if err != nil {
			return r, fmt.Errorf("order %d: %w", i+1, err)
		}
		r.steps = append(r.steps, done)
		if done.result.Result == unsupported {
			break
		}
	}
	r.took = time.Since(begun)
	v.stop()
	v.mu.Lock()
	defer v.mu.Unlock()
	r.requests = v.requests
	return r, nil
}

// text is the table for people.
func text(rows []Row) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.verdict(), r.Client, r.Scenario, r.Did)
	}
	_ = w.Flush()
	return b.String()
}
