package demo

import (
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

	"github.com/fencelock/fencelock/client"
)

// cleanupTimeout bounds what is tidied up after a run that may have been cut off.
const cleanupTimeout = 5 * time.Second

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
	resource string
	url      string // of the server
	locks    *client.Client
	plain    AccountConfig // round one's storage
	closers  []func(context.Context) error
	show     *printer

	// Of the round that is played:
	begun    time.Time
	round    Round
	leaseEnd time.Time // of A's first lease
}

// Run shows both rounds on Out and reports what happened. After an error, the
// report holds the rounds that were complete. It leaves no process and no file.
func Run(ctx context.Context, o Options) (report Report, err error) {
	if !canStop {
		return report, errNoSignals
	}
	d := &director{Options: o, resource: "accounts/alice", show: &printer{w: o.Out, color: o.Color, live: o.Live}}
	defer func() { err = errors.Join(err, d.close(ctx)) }()
	report = Report{Backend: d.backend(), TTL: o.TTL, Begun: time.Now(), Version: o.Version}
	if err := d.open(ctx); err != nil {
		return report, err
	}
	report.Account = d.resource
	d.show.opening(report)
	if err := d.serve(ctx); err != nil {
		return report, err
	}
	for _, round := range []Round{{Storage: d.storage("a plain JSON file", "a plain table")}, {Guarded: true, Storage: d.storage("a guarded record in the embedded file", "a guarded record")}} {
		d.round = round
		if err := d.play(ctx); err != nil {
			return report, err
		}
		report.Rounds = append(report.Rounds, d.round)
		d.show.print("\n" + d.show.chart(d.round))
	}
	report.Took = time.Since(report.Begun).Round(100 * time.Millisecond)
	d.show.verdicts(report)
	return report, d.show.err
}

// backend says what the server stands on.
func (d *director) backend() string {
	locks := "one embedded node"
	if d.Redis != "" {
		nodes := strings.Count(d.Redis, ",") + 1
		locks = fmt.Sprintf("a quorum of %d of %d Redis nodes", nodes/2+1, nodes)
	}
	return locks + ", " + d.storage("guarded records in the embedded file", "guarded records")
}

func (d *director) storage(embedded, inPostgres string) string {
	if d.DatabaseURL == "" {
		return embedded
	}
	return inPostgres + " in Postgres"
}

// open makes everything that both rounds need.
func (d *director) open(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "fencelock-demo-"); err != nil {
		return err
	}
	d.closers = append(d.closers, func(context.Context) error { return os.RemoveAll(d.dir) })
	name := strings.ToLower(rand.Text()[:8])
	if d.Redis != "" || d.DatabaseURL != "" {
		// What others may use gets a name that is nobody's account.
		d.resource = "fencelock-demo/" + name + "/" + d.resource
	}
	d.plain = AccountConfig{File: filepath.Join(d.dir, "alice.json")}
	if d.DatabaseURL != "" {
		d.plain = AccountConfig{DatabaseURL: d.DatabaseURL, Schema: "fencelock_demo_" + name}
		t := table{url: d.DatabaseURL, schema: d.plain.Schema}
		d.closers = append(d.closers, t.drop)
		if err := t.create(ctx); err != nil {
			return fmt.Errorf("cannot make a table for the demonstration in Postgres: %w", err)
		}
	}
	return nil
}

// close undoes open, in reverse order, also after ctx has ended.
func (d *director) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, undo := range slices.Backward(d.closers) {
		err = errors.Join(err, undo(ctx))
	}
	return err
}

// play is a round: A is stopped between the check of its lease and its write,
// B takes over when A's lease has ended, and A continues.
func (d *director) play(ctx context.Context) error {
	account := d.plain
	if d.round.Guarded {
		account = AccountConfig{Resource: d.resource}
	}
	storage := account.open(d.url)
	if err := d.deposit(ctx, storage); err != nil {
		return fmt.Errorf("cannot open the account: %w", err)
	}
	d.show.heading(d.round)
	d.begun, d.leaseEnd = time.Now(), time.Time{}
	// A will be stopped long before its work is done, even if this machine is busy.
	a, err := d.start(WorkerA, account, d.TTL*3/4)
	if err != nil {
		return err
	}
	defer a.end()
	if _, err := a.until(ctx, Checked); err != nil {
		return err
	}
	if err := d.stopped(ctx, a, func() error { return d.takeOver(ctx, account) }); err != nil {
		return err
	}
	if _, err := a.until(ctx); err != nil {
		return err
	}
	d.round.Final, err = storage.read(ctx, 0)
	return err
}

// deposit puts the opening balance on the account.
func (d *director) deposit(ctx context.Context, storage account) error {
	lease, err := d.locks.Acquire(ctx, d.resource, client.Request{TTL: d.TTL})
	if err != nil {
		return err
	}
	return errors.Join(storage.write(ctx, int64(lease.Token()), opening), lease.Release(ctx))
}

// stopped lets A work for a moment, and stops it while others act.
func (d *director) stopped(ctx context.Context, a *cast, meanwhile func() error) error {
	if err := pause(ctx, d.beat()/2); err != nil {
		return err
	}
	a.signal(stopSignal)
	d.record(Event{Who: WorkerA, Kind: Stopped, Time: time.Now()})
	if err := errors.Join(pause(ctx, d.beat()/4), meanwhile(), pause(ctx, d.beat())); err != nil {
		return err
	}
	// Noted before it happens, or A might seem to write while it stands.
	d.record(Event{Who: WorkerA, Kind: Continued, Time: time.Now()})
	a.signal(continueSignal)
	return nil
}

// takeOver runs B, from its question for the lock to its end.
func (d *director) takeOver(ctx context.Context, account AccountConfig) error {
	b, err := d.start(WorkerB, account, d.beat())
	if err != nil {
		return err
	}
	defer b.end()
	// On a very busy machine A's lease may be over before B asks.
	met, err := b.until(ctx, Held, Acquired)
	if err == nil && met == Held {
		err = d.show.countdown(ctx, "waiting for A's lease to end", d.leaseEnd)
		d.record(Event{Who: WorkerA, Kind: Ended, Time: d.leaseEnd})
	}
	if err != nil {
		return err
	}
	_, err = b.until(ctx)
	return err
}

// record notes an event and shows it.
func (d *director) record(e Event) {
	// What came out of another process has no monotonic clock.
	e.At = max(e.Time.Round(0).Sub(d.begun.Round(0)), 0)
	if e.Kind == Acquired && d.leaseEnd.IsZero() {
		d.leaseEnd = e.Time.Add(e.Left)
	}
	d.round.Events = append(d.round.Events, e)
	d.show.event(e)
}

// cast is a worker as the director sees it.
type cast struct {
	*process
	*director
}

// start starts one of the two.
func (d *director) start(who Actor, account AccountConfig, work time.Duration) (*cast, error) {
	input, err := json.Marshal(WorkerConfig{
		Who: who, Server: d.url, Resource: d.resource, Account: account, TTL: d.TTL, Work: work, RetryWork: d.beat(),
	})
	if err != nil {
		return nil, err
	}
	started := time.Now()
	p, err := startProcess("worker "+string(who), exec.Command(d.Program, "demo-worker"), input)
	if err != nil {
		return nil, err
	}
	d.record(Event{Who: who, Kind: Started, Time: started, PID: p.cmd.Process.Pid})
	return &cast{process: p, director: d}, nil
}

// until records what the worker tells, up to one of these kinds, which it
// returns, or to its end if there are none.
func (c *cast) until(ctx context.Context, kinds ...Kind) (Kind, error) {
	for {
		line, err := c.next(ctx)
		if err != nil {
			return "", err
		}
		var e Event
		switch {
		case line == "" && c.err == nil && len(kinds) == 0:
			return "", nil
		case line == "":
			return "", c.failure()
		case json.Unmarshal([]byte(line), &e) != nil:
			continue // its last words, if it fails
		}
		c.record(e)
		if slices.Contains(kinds, e.Kind) {
			return e.Kind, nil
		}
	}
}
