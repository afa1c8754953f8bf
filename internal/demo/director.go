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

// Run shows both rounds on Out and reports what happened. After an error, the
// report holds the rounds that were complete. It leaves no process and no file.
func Run(ctx context.Context, o Options) (report Report, err error) {
	if stopSignal == nil {
		return report, errors.New("the demonstration stops processes with SIGSTOP, which this system has not got")
	}
	dir, err := os.MkdirTemp("", "fencelock-demo-")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := strings.ToLower(rand.Text()[:8])
	d := &director{Options: o, resource: "accounts/alice", show: &printer{w: o.Out, color: o.Color, live: o.Live}}
	if o.Redis != "" || o.DatabaseURL != "" {
		// What others may use gets a name that is nobody's account.
		d.resource = "fencelock-demo/" + name + "/accounts/alice"
	}
	plain := AccountConfig{File: filepath.Join(dir, "alice.json")}
	if o.DatabaseURL != "" {
		t := table{url: o.DatabaseURL, schema: "fencelock_demo_" + name}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			err = errors.Join(err, t.drop(ctx))
		}()
		if err := t.create(ctx); err != nil {
			return report, fmt.Errorf("cannot make a table for the demonstration in Postgres: %w", err)
		}
		plain = AccountConfig{DatabaseURL: t.url, Schema: t.schema}
	}
	report = Report{Backend: o.backend(), Account: d.resource, TTL: o.TTL, Begun: time.Now(), Version: o.Version}
	d.show.opening(report)
	server, err := d.serve(ctx, dir)
	if err != nil {
		return report, err
	}
	defer server.end()
	for _, account := range []AccountConfig{plain, {Resource: d.resource}} {
		round, err := d.play(ctx, account)
		if err != nil {
			return report, err
		}
		report.Rounds = append(report.Rounds, round)
		d.show.print("\n" + d.show.chart(round))
	}
	report.Took = time.Since(report.Begun).Round(100 * time.Millisecond)
	d.show.verdicts(report)
	return report, d.show.err
}

// backend says what the server stands on.
func (o Options) backend() string {
	locks := "one embedded node"
	if o.Redis != "" {
		nodes := strings.Count(o.Redis, ",") + 1
		locks = fmt.Sprintf("a quorum of %d of %d Redis nodes", nodes/2+1, nodes)
	}
	return locks + ", guarded records in " + o.guard()
}

func (o Options) guard() string {
	if o.DatabaseURL != "" {
		return "Postgres"
	}
	return "the embedded file"
}

// director starts the processes and stops and continues them.
type director struct {
	Options

	resource string
	url      string // of the server
	locks    *client.Client
	show     *printer

	// Of the round that is played:
	begun    time.Time
	round    Round
	leaseEnd time.Time // of A's first lease
}

// play is a round: A is stopped between the check of its lease and its write,
// B takes over when A's lease has ended, and A continues.
func (d *director) play(ctx context.Context, account AccountConfig) (Round, error) {
	d.round = Round{Guarded: account.Resource != "", Storage: account.name(d.guard())}
	d.show.heading(d.round)
	storage := account.open(d.url)
	if err := d.deposit(ctx, storage); err != nil {
		return d.round, fmt.Errorf("cannot open the account: %w", err)
	}
	d.begun, d.leaseEnd = time.Now(), time.Time{}
	// A will be stopped long before its work is done, even if this machine is busy.
	a, err := d.start(WorkerA, account, d.TTL*3/4)
	if err != nil {
		return d.round, err
	}
	defer a.end()
	if _, err := a.until(ctx, Checked); err != nil {
		return d.round, err
	}
	err = pause(ctx, d.beat()/2)
	a.signal(stopSignal)
	d.record(Event{Who: WorkerA, Kind: Stopped, Time: time.Now()})
	if err := errors.Join(err, pause(ctx, d.beat()/4), d.takeOver(ctx, account), pause(ctx, d.beat())); err != nil {
		return d.round, err
	}
	// Noted before it happens, or A might seem to write while it stands.
	d.record(Event{Who: WorkerA, Kind: Continued, Time: time.Now()})
	a.signal(continueSignal)
	if _, err = a.until(ctx); err == nil {
		d.round.Final, err = storage.read(ctx, 0)
	}
	return d.round, err
}

// deposit puts the opening balance on the account.
func (d *director) deposit(ctx context.Context, storage account) error {
	lease, err := d.locks.Acquire(ctx, d.resource, client.Request{TTL: d.TTL})
	if err != nil {
		return err
	}
	return errors.Join(storage.write(ctx, int64(lease.Token()), opening), lease.Release(ctx))
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
	if err == nil {
		_, err = b.until(ctx)
	}
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
		var e Event
		switch {
		case err != nil:
			return "", err
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
