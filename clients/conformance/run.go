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
	// startAtOnce is how many drivers start at the same time, before any scenario is played. It is small
	// because starting interpreters keeps a machine busy.
	startAtOnce = 2
	// playAtOnce is how many scenarios are played at the same time, each by one driver: drivers mostly
	// wait. A client may lower it with AtOnce.
	playAtOnce = 8
)

// everything returns every row of the table.
func everything() []scenario { return slices.Concat(scenarios, corners) }

// Run runs the clients through the scenarios. It logs the mistakes of the clients; if there are none, it
// logs the table of what each client did.
func Run(t *testing.T, clients []Client, table []scenario) {
	t.Helper()
	rows := Table(t, clients, table)
	for _, r := range rows {
		if len(r.Wrong) > 0 {
			t.Errorf("%s, %s\ndid: %s\nwrong: %s\nwhy: %s", r.Client, r.Scenario, r.Did, strings.Join(r.Wrong, "\n       "), r.Why)
		}
	}
	if !t.Failed() {
		t.Logf("\n%s", text(rows))
	}
}

// Table runs the clients through the scenarios, and returns one row for each scenario and client, in the
// order of the scenarios.
func Table(t *testing.T, clients []Client, table []scenario) []Row {
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
	rows := make([]Row, len(table)*len(clients))
	for j, c := range clients {
		all := startDrivers(t, c, shim)
		atOnce(cap(all.idle), len(table), func(i int) { rows[i*len(clients)+j] = all.row(table[i], late) })
		all.end()
	}
	return rows
}

// atOnce calls do with 0 to n-1, with at most limit calls at the same time.
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
	Why              string   // what goes wrong if a client behaves differently
	Did              string   // its calls with their outcomes, and what it reported
	Wrong            []string // its mistakes; none if it behaved correctly
	Unsupported      bool     // the client has no such feature
	Pending          string   // why the scenario is not played with this client yet; "" if it is played

	late time.Duration // how late a correct client may have been
}

func (r Row) verdict() string {
	switch {
	case r.Pending != "":
		return "pending"
	case r.Unsupported:
		return "—"
	case len(r.Wrong) > 0:
		return "WRONG"
	}
	return "right"
}

// machine is shared by the rows of all clients. A row that is played alone holds it for writing, every
// other row for reading.
var machine sync.RWMutex

// useMachine waits until this row may be played, alone or together with others, and returns the function
// that ends its use.
func useMachine(alone bool) (done func()) {
	if alone {
		machine.Lock()
		return machine.Unlock
	}
	machine.RLock()
	return machine.RUnlock
}

// drivers is the set of drivers of one client. Each driver plays one scenario at a time.
type drivers struct {
	t      *testing.T
	client Client
	shim   string
	idle   chan *driver // nil stands for a driver that has not been started
}

func startDrivers(t *testing.T, c Client, shim string) *drivers {
	t.Helper()
	n := cmp.Or(c.AtOnce, playAtOnce)
	ds := &drivers{t: t, client: c, shim: shim, idle: make(chan *driver, n)}
	started := make([]*driver, n)
	atOnce(startAtOnce, n, func(i int) {
		defer useMachine(false)()
		started[i] = ds.start()
	})
	atOnce(n, n, func(i int) {
		defer useMachine(false)()
		ds.idle <- ds.used(started[i])
	})
	return ds
}

// start starts a driver. It returns nil, and fails the test, if the driver does not start.
func (ds *drivers) start() *driver {
	d, err := ds.client.start(ds.t, ds.shim)
	if err != nil {
		ds.t.Errorf("%s: %v", ds.client.Name, err)
	}
	return d
}

// used makes a driver do once everything that scenarios will ask of it, because an interpreter or a
// virtual machine is slow the first time. It returns nil, and fails the test, if the driver fails.
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

// end stops the drivers.
func (ds *drivers) end() {
	atOnce(cap(ds.idle), cap(ds.idle), func(int) {
		if d := <-ds.idle; d != nil {
			if said := d.stop(); said != "" {
				ds.t.Errorf("%s: a driver wrote to its standard error: %s", ds.client.Name, said)
			}
		}
	})
}

// row makes a driver play the scenario, and judges what the client did.
func (ds *drivers) row(s scenario, late *lateness) Row {
	row := Row{Scenario: s.name, Client: ds.client.Name, Why: s.why, Pending: ds.client.pending(s.name)}
	if row.Pending != "" {
		row.Did = row.Pending
		return row
	}
	d := <-ds.idle
	defer useMachine(s.alone)()
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
	driver, starved := waited(d.cmd.Process.Pid, before)
	if err != nil || s.last() {
		if said := d.stop(); said != "" {
			err = errors.Join(err, fmt.Errorf("the driver wrote to its standard error: %s", said))
		}
		d = nil
	}
	ds.idle <- d
	kit := late.since(begun)
	r.late += kit + driver
	r.starved = starved
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

// last reports whether no other scenario may use the driver after this one: a clock was moved, or the
// process forked.
func (s scenario) last() bool {
	return slices.ContainsFunc(s.faults, func(f fault) bool { return f.clock != 0 }) || slices.ContainsFunc(s.orders, func(o order) bool { return o.Do == "fork" })
}

// play starts the service, and gives the driver its orders one after the other.
func (ds *drivers) play(s scenario, d *driver) (r run, err error) {
	s.moveClock = d.moveClock
	v := startService(ds.t, s)
	defer v.stop()
	r = run{scenario: s, service: v, late: usualLateness}
	supported, err := d.begin(setup{
		Servers: strings.Join(v.urls, ","), TimeoutMS: cmp.Or(s.timeout, 600*time.Millisecond).Milliseconds(),
		PatienceMS: cmp.Or(s.patience, 3*time.Second).Milliseconds(), Raises: s.raises,
	})
	if err != nil {
		return r, err
	}
	if !supported {
		r.steps = []step{{result: result{Result: unsupported}}}
		return r, nil
	}
	begun := time.Now()
	for i, o := range s.orders {
		if o.Do == letGo.Do && r.steps[i-1].result.Result != "acquired" { // it has none to release
			if !s.goesOn {
				break
			}
			r.steps = append(r.steps, step{order: o, result: result{Result: "none"}, sent: time.Now()})
			continue
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
