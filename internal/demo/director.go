package demo

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// cleanupTimeout bounds what is tidied up after a run that may have been cut off.
const cleanupTimeout = 5 * time.Second

// eventMost is how long a worker that runs may be silent, beyond its work.
const eventMost = 30 * time.Second

// Options are what Run is told.
type Options struct {
	Program     string        // the executable that has serve and demo-worker
	Version     string        // of it
	Redis       string        // addresses as in FENCELOCK_REDIS_ADDRS; "" for the embedded node
	DatabaseURL string        // "" for the embedded guard and a file
	TTL         time.Duration // of the workers' leases
	Out         io.Writer
	Color       bool // Out shows colours
	Live        bool // Out is a terminal, where a line can be overwritten
}

// beat is the time unit of the play: long enough to be seen next to the TTL,
// and no longer than anybody likes to wait.
func (o Options) beat() time.Duration { return min(o.TTL/5, 2*time.Second) }

// director starts the processes and stops and continues them.
type director struct {
	Options

	dir      string // for files of this run
	account  string // the resource
	server   *server
	process  *child // of the server
	accounts [2]AccountConfig
	plain    account // round one's storage
	closers  []func(context.Context) error
	show     *printer
}

// Run shows both rounds on Out and reports what happened. After an error, the
// report holds the rounds that were complete. It leaves no process and no file.
func Run(ctx context.Context, o Options) (report Report, err error) {
	d := &director{Options: o, account: "accounts/alice", show: &printer{w: o.Out, color: o.Color, live: o.Live}}
	defer func() {
		d.show.clear()
		err = errors.Join(err, d.close(ctx))
	}()
	begun := time.Now()
	report = Report{Backend: d.backend(), TTL: o.TTL, Begun: begun, Version: o.Version}
	if err := d.open(ctx); err != nil {
		return report, err
	}
	report.Account = d.account
	d.show.opening(report)
	for _, guarded := range []bool{false, true} {
		round, err := d.round(ctx, guarded)
		if err != nil {
			return report, err
		}
		report.Rounds = append(report.Rounds, round)
		d.show.chart(round)
	}
	report.Took = time.Since(begun)
	d.show.verdicts(report)
	return report, d.show.err
}

// backend says what the server stands on.
func (d *director) backend() string {
	locks, guard := "one embedded node", "the embedded file"
	if d.Redis != "" {
		nodes := strings.Count(d.Redis, ",") + 1
		locks = fmt.Sprintf("a quorum of %d of %d Redis nodes", nodes/2+1, nodes)
	}
	if d.DatabaseURL != "" {
		guard = "Postgres"
	}
	return locks + ", guarded records in " + guard
}

// open makes everything that both rounds need.
func (d *director) open(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "fencelock-demo-"); err != nil {
		return err
	}
	d.closers = append(d.closers, func(context.Context) error { return os.RemoveAll(d.dir) })
	if d.Redis != "" || d.DatabaseURL != "" {
		// What others may use gets a name that is nobody's account.
		d.account = "fencelock-demo/" + strings.ToLower(rand.Text()[:8]) + "/" + d.account
	}
	if err := d.openPlain(ctx); err != nil {
		return err
	}
	d.accounts[1] = AccountConfig{Resource: d.account}
	return d.serve(ctx)
}

// openPlain makes the storage that checks nothing.
func (d *director) openPlain(ctx context.Context) error {
	if d.DatabaseURL == "" {
		file := filepath.Join(d.dir, "alice.json")
		d.accounts[0], d.plain = AccountConfig{File: file}, fileAccount(file)
		return nil
	}
	schema := "fencelock_demo_" + strings.ToLower(rand.Text()[:8])
	table := TableConfig{DatabaseURL: d.DatabaseURL, Schema: schema}
	t, err := openTable(ctx, table)
	if err != nil {
		return fmt.Errorf("cannot reach Postgres: %w", err)
	}
	d.closers = append(d.closers, t.Close)
	d.accounts[0], d.plain = AccountConfig{Table: &table}, t
	if err := t.create(ctx, schema); err != nil {
		return fmt.Errorf("cannot make a table for the demonstration in Postgres: %w", err)
	}
	d.closers = append(d.closers, func(ctx context.Context) error { return t.drop(ctx, schema) })
	return nil
}

// close undoes open, in reverse order, also after ctx has ended.
func (d *director) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	var errs []error
	for len(d.closers) > 0 {
		last := len(d.closers) - 1
		errs = append(errs, d.closers[last](ctx))
		d.closers = d.closers[:last]
	}
	return errors.Join(errs...)
}

// round plays the two workers once.
func (d *director) round(ctx context.Context, guarded bool) (Round, error) {
	r := &recorder{show: d.show, begun: time.Now(), round: Round{Guarded: guarded, Storage: d.storage(guarded)}}
	if err := d.deposit(ctx, guarded); err != nil {
		return r.round, fmt.Errorf("cannot open the account: %w", err)
	}
	d.show.heading(r.round)
	r.begun = time.Now()
	a, err := d.startWorker(r, WorkerA, guarded)
	if err != nil {
		return r.round, err
	}
	defer a.end()
	if err := d.pauseA(ctx, a); err != nil {
		return r.round, err
	}
	if err := d.takeOver(ctx, r, a, guarded); err != nil {
		return r.round, err
	}
	if err := d.resumeA(ctx, a); err != nil {
		return r.round, err
	}
	r.round.Final, err = d.read(ctx, guarded)
	return r.round, err
}

func (d *director) storage(guarded bool) string {
	switch {
	case guarded && d.DatabaseURL != "":
		return "a guarded record in Postgres"
	case guarded:
		return "a guarded record in the embedded file"
	case d.DatabaseURL != "":
		return "a plain table in Postgres"
	default:
		return "a plain JSON file"
	}
}

// deposit puts the opening balance on the account.
func (d *director) deposit(ctx context.Context, guarded bool) error {
	if !guarded {
		return d.plain.Write(ctx, 0, opening)
	}
	lease, _, err := d.server.acquire(ctx, d.account, "demo", d.TTL, 0)
	if err != nil {
		return err
	}
	return errors.Join(
		d.server.write(ctx, d.account, lease.FencingToken, balance{opening}),
		d.server.release(ctx, lease.LeaseID))
}

func (d *director) read(ctx context.Context, guarded bool) (int64, error) {
	if guarded {
		return (&guardedAccount{server: d.server, resource: d.account}).Read(ctx, 0)
	}
	return d.plain.Read(ctx, 0)
}

// pauseA stops A between the check of its lease and its write.
func (d *director) pauseA(ctx context.Context, a *cast) error {
	if _, err := a.until(ctx, nil, Checked); err != nil {
		return err
	}
	if err := pause(ctx, d.beat()/2); err != nil { // it works, and then
		return err
	}
	if err := a.stop(ctx); err != nil {
		return err
	}
	a.note(Stopped, time.Now())
	return pause(ctx, d.beat()/4)
}

// takeOver runs B, from its question for the lock to its end, while A stands still.
func (d *director) takeOver(ctx context.Context, r *recorder, a *cast, guarded bool) error {
	b, err := d.startWorker(r, WorkerB, guarded)
	if err != nil {
		return err
	}
	defer b.end()
	// On a very busy machine A's lease may be over before B asks.
	met, err := b.until(ctx, nil, Held, Acquired)
	if err == nil && met == Held {
		_, err = b.until(ctx, d.watchLease(a), Acquired)
	}
	if err != nil {
		return err
	}
	if _, err := b.until(ctx, nil, Released, Lost); err != nil {
		return err
	}
	return errors.Join(b.succeeded(ctx), pause(ctx, d.beat()))
}

// watchLease shows how long A's lease goes on yet, and notes its end.
func (d *director) watchLease(a *cast) func() {
	end, ended := a.leaseEnd(), false
	return func() {
		left := time.Until(end)
		if left > 0 {
			d.show.progress("waiting for A's lease to end", left)
		} else if !ended {
			ended = true
			a.note(Ended, end)
		}
	}
}

// resumeA lets A go on, to its end.
func (d *director) resumeA(ctx context.Context, a *cast) error {
	a.note(Continued, time.Now()) // before it happens, or A might seem to write while it stands
	if err := a.resume(ctx); err != nil {
		return err
	}
	if _, err := a.until(ctx, nil); err != nil {
		return err
	}
	return a.succeeded(ctx)
}

// startWorker starts one of the two.
func (d *director) startWorker(r *recorder, who Actor, guarded bool) (*cast, error) {
	cfg := WorkerConfig{
		Who: who, Server: d.server.url, Resource: d.account, Account: d.accounts[0], TTL: d.TTL,
		Deposit: depositB, Work: d.beat(), RetryWork: d.beat(),
	}
	if guarded {
		cfg.Account = d.accounts[1]
	}
	if who == WorkerA {
		// It will be stopped long before that, even if this machine is busy.
		cfg.Deposit, cfg.Work = depositA, d.TTL*3/4
	}
	input, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	process, err := startChild("worker "+string(who), exec.Command(d.Program, "demo-worker"), input)
	if err != nil {
		return nil, err
	}
	c := &cast{child: process, who: who, recorder: r, events: make(chan Event, 64)}
	r.add(Event{Who: who, Kind: Started, Time: started, PID: process.pid})
	go c.listen()
	return c, nil
}

// cast is a worker as the director sees it.
type cast struct {
	*child
	*recorder

	who    Actor
	events chan Event // closed when it says no more
}

// listen reads what the worker tells.
func (c *cast) listen() {
	defer close(c.events)
	for lines := bufio.NewScanner(c.stdout); lines.Scan(); {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return // it ends by itself when nobody reads
		}
		c.events <- e
	}
}

// until records the worker's events up to one of these kinds, which it
// returns, or to its end if there are none. Meanwhile it calls tick now and
// then, and before each event.
func (c *cast) until(ctx context.Context, tick func(), kinds ...Kind) (Kind, error) {
	often := time.NewTicker(100 * time.Millisecond)
	defer often.Stop()
	late := time.NewTimer(time.Until(c.leaseEnd()) + eventMost)
	defer late.Stop()
	if tick == nil {
		tick = func() {}
	}
	for {
		select {
		case e, more := <-c.events:
			if !more {
				return "", c.silence(ctx, kinds)
			}
			tick()
			c.add(e)
			if slices.Contains(kinds, e.Kind) {
				return e.Kind, nil
			}
		case <-often.C:
			tick()
		case <-late.C:
			return "", fmt.Errorf("worker %s is silent and was expected to say one of %v", c.who, kinds)
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// silence is what it means that the worker says no more.
func (c *cast) silence(ctx context.Context, expected []Kind) error {
	if len(expected) == 0 {
		return nil
	}
	if err := c.succeeded(ctx); err != nil {
		return err
	}
	return fmt.Errorf("worker %s ended and did not say one of %v", c.who, expected)
}

// note records what was done to the worker.
func (c *cast) note(kind Kind, at time.Time) {
	c.add(Event{Who: c.who, Kind: kind, Time: at})
}
