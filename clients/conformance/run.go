package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/fencelock/fencelock/chaos"
)

// atOnce is how many scenarios are played at the same time: they mostly wait.
const atOnce = 24

// Run runs the clients through every scenario, and logs the table: what each client
// did, and whether that is right.
func Run(t *testing.T, clients []Client) {
	t.Helper()
	rows := Table(t, clients, calmsDown)
	t.Logf("\n%s", text(rows))
	for _, r := range rows {
		if len(r.Wrong) > 0 {
			t.Errorf("%s, %s\ndid: %s\nwrong: %s\nwhy: %s", r.Client, r.Scenario, r.Did, strings.Join(r.Wrong, "\n       "), r.Why)
		}
	}
}

// Table runs the clients through every scenario, and returns a row for each of both, in
// the order of the scenarios. A client that is wrong while the machine is busy has
// more tries, for so long.
func Table(t *testing.T, clients []Client, patience time.Duration) []Row {
	t.Helper()
	shim, err := chaos.BuildShim(t.TempDir())
	if err != nil {
		t.Fatalf("the clock of clients cannot be moved: %v", err)
	}
	late, err := watchLateness()
	if err != nil {
		t.Fatal(err)
	}
	kit := &kit{shim: shim, starting: make(chan struct{}, 2), late: late, patience: patience} //nolint:mnd // interpreters that start are what keeps a machine busy
	defer kit.late.end()
	rows := make([]Row, len(scenarios)*len(clients))
	var all sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	for i, s := range scenarios {
		for j, c := range clients {
			all.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				rows[i*len(clients)+j] = kit.row(t, c, s)
			})
		}
	}
	all.Wait()
	return rows
}

// Row is what one client did in one scenario.
type Row struct {
	Scenario, Client string
	Why              string   // what goes wrong for a client that does otherwise
	Did              string   // its calls with their outcomes, and what it said
	Wrong            []string // what was wrong; none if it did right
	Unsupported      bool     // the client has nothing of the kind
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

// kit is what the scenarios of a table share.
type kit struct {
	shim     string        // moves the wall clocks of clients
	starting chan struct{} // has room for the drivers that may start at the same time
	late     *lateness
	patience time.Duration
}

// row plays a scenario, and again if the client was wrong while the machine was busy.
func (k *kit) row(t *testing.T, c Client, s scenario) (row Row) {
	t.Helper()
	for end := time.Now().Add(k.patience); ; {
		begun := time.Now()
		row = k.play(t, c, s)
		if len(row.Wrong) == 0 || !k.late.since(begun) || time.Now().After(end) {
			return row
		}
	}
}

func (k *kit) play(t *testing.T, c Client, s scenario) Row {
	t.Helper()
	clock, _ := chaos.NewClock(t, t.TempDir(), k.shim, 0)
	c.Env = append(slices.Clone(c.Env), clock.Env()...)
	s.moveClock = func(d time.Duration) {
		if err := clock.Jump(d); err != nil {
			t.Error(err)
		}
	}
	r, err := k.run(t, c, s)
	row := Row{Scenario: s.name, Client: c.Name, Why: s.why, Did: r.trace() + " → " + r.said(), Unsupported: r.unsupported()}
	switch {
	case err != nil:
		row.Wrong = []string{err.Error()}
	case !row.Unsupported:
		row.Wrong = r.judge()
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

// run runs one client through one scenario.
func (k *kit) run(t *testing.T, c Client, s scenario) (r run, err error) {
	t.Helper()
	v := startService(t, s)
	r = run{scenario: s, service: v}
	patience := s.patience
	if patience == 0 {
		patience = 3 * time.Second
	}
	timeout := s.timeout
	if timeout == 0 {
		timeout = 600 * time.Millisecond
	}
	k.starting <- struct{}{}
	d, err := c.start(setup{Servers: v.urls(), TimeoutMS: timeout.Milliseconds(), PatienceMS: patience.Milliseconds()})
	<-k.starting
	if err != nil {
		return r, err
	}
	begun := time.Now()
	for i, o := range s.orders {
		v.begin(i)
		done, err := d.obey(o)
		if err != nil {
			return r, fmt.Errorf("order %d: %w\n%s", i+1, err, d.stop())
		}
		r.steps = append(r.steps, done)
		if done.result.Result == unsupported {
			break
		}
	}
	r.took = time.Since(begun)
	if said := d.stop(); said != "" {
		err = fmt.Errorf("the driver wrote to its standard error: %s", said)
	}
	v.stop()
	v.mu.Lock()
	defer v.mu.Unlock()
	r.requests = v.requests
	return r, err
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
