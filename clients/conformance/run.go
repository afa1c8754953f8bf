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

const (
	// startAtOnce is how many drivers start at the same time, before any scenario is played:
	// interpreters that start are what keeps a machine busy.
	startAtOnce = 2
	// playAtOnce is how many scenarios are played at the same time: they mostly wait.
	playAtOnce = 8
)

// Run runs the clients through every scenario, and logs the table: what each client
// did, and whether that is right.
func Run(t *testing.T, clients []Client) {
	t.Helper()
	rows := Table(t, clients)
	t.Logf("\n%s", text(rows))
	for _, r := range rows {
		if len(r.Wrong) > 0 {
			t.Errorf("%s, %s\ndid: %s\nwrong: %s\nwhy: %s", r.Client, r.Scenario, r.Did, strings.Join(r.Wrong, "\n       "), r.Why)
		}
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
		stages := make([]*stage, len(scenarios))
		atOnce(startAtOnce, len(scenarios), func(i int) { stages[i] = prepare(t, c, scenarios[i], shim) })
		atOnce(playAtOnce, len(scenarios), func(i int) { rows[i*len(clients)+j] = stages[i].row(late) })
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

// stage is a client that is ready for its scenario.
type stage struct {
	client   Client
	scenario scenario
	service  *service
	driver   *driver
	failed   error // why it is not ready
}

// prepare starts the service and the client's driver.
func prepare(t *testing.T, c Client, s scenario, shim string) *stage {
	t.Helper()
	clock, _ := chaos.NewClock(t, t.TempDir(), shim, 0)
	c.Env = append(slices.Clone(c.Env), clock.Env()...)
	s.moveClock = func(d time.Duration) {
		if err := clock.Jump(d); err != nil {
			t.Error(err)
		}
	}
	v := startService(t, s)
	patience, timeout := s.patience, s.timeout
	if patience == 0 {
		patience = 3 * time.Second
	}
	if timeout == 0 {
		timeout = 600 * time.Millisecond
	}
	d, err := c.start(setup{Servers: strings.Join(v.urls, ","), TimeoutMS: timeout.Milliseconds(), PatienceMS: patience.Milliseconds()})
	return &stage{client: c, scenario: s, service: v, driver: d, failed: err}
}

// row plays the scenario and judges what the client did.
func (st *stage) row(late *lateness) Row {
	begun := time.Now()
	r, err := st.play()
	measured := late.since(begun)
	r.late += measured
	row := Row{Scenario: st.scenario.name, Client: st.client.Name, Why: st.scenario.why, Did: r.trace() + " → " + r.said(), Unsupported: r.unsupported()}
	switch {
	case err != nil:
		row.Wrong = []string{err.Error()}
	case !row.Unsupported:
		row.Wrong = r.judge()
	}
	if len(row.Wrong) > 0 && measured > usualLateness {
		row.Wrong = append(row.Wrong, fmt.Sprintf("the machine: this process was late by %s meanwhile, and the client may have been later", measured.Round(time.Millisecond)))
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

// play gives the driver its orders, one after the other.
func (st *stage) play() (r run, err error) {
	s, v, d := st.scenario, st.service, st.driver
	r = run{scenario: s, service: v, late: usualLateness}
	if st.failed != nil {
		return r, st.failed
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
