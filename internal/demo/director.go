// Package demo shows, with real processes, what a lock alone cannot prevent
// and what a fencing token does about it.
//
// Two workers deposit money into the same account, under the same lock. The
// first is stopped (SIGSTOP) between the check of its lease and its write, as by
// a long garbage collection, until its lease has expired. The second takes the
// lock over and deposits. Then the first worker continues without knowing any of this, and writes.
//
// Round one keeps the account in a file, which takes every write: the second
// deposit is lost. Round two keeps it in a guarded record: the late write is
// refused, the first worker begins again, and both deposits are there.
//
// [Run] directs the processes, [RunWorker] is a worker's whole program, and a
// [Report] is what happened. [Round.Verdict] judges only by what the workers
// reported and what the storage holds in the end.
package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// Options are the options of Run.
type Options struct {
	Program     string        // the path of the fencelock executable, which has the commands serve and demo-worker
	Version     string        // the version of Program
	Redis       string        // addresses as in FENCELOCK_REDIS_ADDRS; "" for the embedded node
	DatabaseURL string        // of the guarded record; "" for the embedded guard
	TTL         time.Duration // of the workers' leases
	Out         io.Writer
	Color       bool // Out can show colours
	Live        bool // Out is a terminal, on which a line can be overwritten
	ASCII       bool // Out can show only ASCII
	Width       int  // the terminal's columns; 0 for the usual width
}

// beat is the time unit of the play. It is long enough to be visible next to the TTL, and short enough to
// wait for.
func (o Options) beat() time.Duration { return min(o.TTL/5, 2*time.Second) }

// backend describes what the server runs on.
func (o Options) backend() string {
	locks, guard := "one embedded node", "the embedded file"
	if o.Redis != "" {
		nodes := strings.Count(o.Redis, ",") + 1
		locks = fmt.Sprintf("a quorum of %d of %d Redis nodes", nodes/2+1, nodes)
	}
	if o.DatabaseURL != "" {
		guard = "Postgres"
	}
	return locks + ", guarded records in " + guard
}

// Run shows both rounds on Out and reports what happened. After an error, the
// report holds the rounds that were complete. It leaves no process and no file.
func Run(ctx context.Context, o Options) (report Report, err error) {
	if stopSignal == nil {
		return report, errors.New("the demonstration stops processes with SIGSTOP, which this system does not have")
	}
	dir, err := os.MkdirTemp("", "fencelock-demo-")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d := &director{Options: o, resource: "accounts/alice", show: &printer{w: o.Out, color: o.Color, live: o.Live, ascii: o.ASCII, wide: o.Width}}
	if o.Redis != "" || o.DatabaseURL != "" { // others may use these servers, so the name must not be another account's
		d.resource = "fencelock-demo/" + strings.ToLower(rand.Text()[:8]) + "/accounts/alice"
	}
	report = Report{Backend: o.backend(), Account: d.resource, TTL: o.TTL, Begun: time.Now(), Version: o.Version}
	d.show.opening(report)
	server, err := d.serve(ctx, dir)
	if err != nil {
		return report, err
	}
	defer server.end()
	if err := d.awaitNodes(ctx); err != nil {
		return report, fmt.Errorf("%s: %w", report.Backend, err)
	}
	storages := []account{account(filepath.Join(dir, "alice")), account(d.url + "/guarded/" + d.resource)}
	for _, storage := range storages {
		if err := d.open(ctx, storage); err != nil {
			return report, fmt.Errorf("cannot open the account, %s: %w", report.Backend, err)
		}
	}
	for i, telling := range told().Rounds {
		d.round = Round{Telling: telling}
		if err := d.play(ctx, storages[i]); err != nil {
			return report, err
		}
		report.Rounds = append(report.Rounds, d.round)
		d.show.print("\n" + d.show.chart(d.round))
	}
	d.show.verdicts(report)
	return report, d.show.err
}

// director starts the processes and stops and continues them.
type director struct {
	Options

	resource string
	url      string // the server's URL
	locks    *client.Client
	show     *printer

	// The state of the round that is being played:
	begun time.Time
	round Round
}

// play plays the steps of a round in their order.
func (d *director) play(ctx context.Context, storage account) (err error) {
	d.show.heading(d.round)
	d.begun = time.Now()
	workers := map[Actor]*process{}
	defer func() {
		for _, w := range workers {
			w.end()
		}
	}()
	for steps := d.round.Steps; len(steps) > 0 && err == nil; {
		who, taken := steps[0].Who, 1
		switch steps[0].Kind {
		case Started:
			workers[who], err = d.start(who, storage)
		case Stopped:
			err = d.stop(ctx, workers[who])
		case Expired:
			err = d.expire(ctx)
		case Continued:
			err = pause(ctx, d.beat())
			// Recorded before A continues. Otherwise A might seem to write while it is stopped.
			d.record(Event{Who: who, Kind: Continued, Time: time.Now()})
			workers[who].signal(continueSignal)
		default:
			taken, err = d.reported(ctx, workers[who], steps)
		}
		steps = steps[taken:]
	}
	for _, who := range []Actor{WorkerB, WorkerA} {
		if err == nil {
			_, err = d.follow(ctx, workers[who])
		}
	}
	if err == nil {
		d.round.Final, err = storage.read(ctx, 0)
	}
	return err
}

// stop stops A between the check of its lease and its write.
func (d *director) stop(ctx context.Context, a *process) error {
	err := pause(ctx, d.beat()/2)
	a.signal(stopSignal)
	d.record(Event{Who: WorkerA, Kind: Stopped, Time: time.Now()})
	return errors.Join(err, pause(ctx, d.beat()/4))
}

// expire waits until A's lease expires.
func (d *director) expire(ctx context.Context) error {
	lease := d.round.first(WorkerA, Acquired)
	expiry := lease.Time.Add(lease.Left)
	err := d.show.countdown(ctx, "waiting for A's lease to expire", expiry)
	d.record(Event{Who: WorkerA, Kind: Expired, Time: expiry})
	return err
}

// reported waits until a worker reports the first of the steps, and returns how many steps that took: steps
// that need not happen may be left out.
func (d *director) reported(ctx context.Context, worker *process, steps []step) (int, error) {
	var kinds []Kind
	for _, s := range steps {
		if s.Who == steps[0].Who {
			kinds = append(kinds, s.Kind)
		}
		if !s.Maybe {
			break
		}
	}
	met, err := d.follow(ctx, worker, kinds...)
	return 1 + max(0, slices.IndexFunc(steps, func(s step) bool { return s.Who == steps[0].Who && s.Kind == met })), err
}

// awaitNodes waits until locks can be granted, and shows the reason for the wait. It fails if too few nodes
// respond for maxAway, because then the addresses are most likely wrong.
func (d *director) awaitNodes(ctx context.Context) error {
	said := ""
	for away := time.Now().Add(maxAway); ; {
		status, err := d.status(ctx)
		switch {
		case err != nil:
			return err
		case status.Ready:
			return nil
		case quorumAway(status) && time.Now().After(away):
			return fmt.Errorf("%w: %s", client.ErrUnavailable, whyNot(status))
		}
		if why := status.Reason; why != said {
			said = why
			d.show.paragraph("waiting: " + why)
		}
		if err := pause(ctx, maxAway/50); err != nil {
			return err
		}
	}
}

func (d *director) status(ctx context.Context) (status wire.Ready, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+"/readyz", http.NoBody)
	if err != nil {
		return status, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return status, err
	}
	err = json.NewDecoder(resp.Body).Decode(&status)
	return status, errors.Join(err, resp.Body.Close())
}

// quorumAway reports whether too few nodes reply, so that no wait helps.
func quorumAway(status wire.Ready) bool {
	replying := 0
	for _, n := range status.Nodes {
		if n.State == "voting" || n.State == "quarantined" {
			replying++
		}
	}
	return replying < status.Quorum
}

// whyNot returns the server's reason, and its reason for each node that it cannot use.
func whyNot(status wire.Ready) string {
	why := []string{status.Reason}
	for _, n := range status.Nodes {
		if n.State == "unreachable" || n.State == "refused" {
			why = append(why, fmt.Sprintf("%s is %s: %s", n.Name, n.State, n.Reason))
		}
	}
	return strings.Join(why, "\n  ")
}

// open stores the opening balance in the account.
func (d *director) open(ctx context.Context, storage account) error {
	lease, err := d.locks.Acquire(ctx, d.resource, client.TTL(d.TTL), client.Wait(maxStart))
	if err != nil {
		return err
	}
	return errors.Join(storage.write(ctx, int64(lease.Token()), told().Opening), lease.Release(ctx))
}

// record keeps an event and shows it.
func (d *director) record(e Event) {
	// Times from other processes have no monotonic clock.
	e.At = max(e.Time.Round(0).Sub(d.begun.Round(0)), 0)
	d.round.Events = append(d.round.Events, e)
	d.show.event(e)
}

// start starts a worker.
func (d *director) start(who Actor, storage account) (*process, error) {
	work := d.beat()
	if who == WorkerA { // it will be stopped long before its work is done, even if this machine is busy
		work = d.TTL * 3 / 4
	}
	input, err := json.Marshal(WorkerConfig{
		Who: who, Server: d.url, Resource: d.resource, Account: storage, TTL: d.TTL, Work: work, RetryWork: d.beat(),
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
	return p, nil
}

// follow records the events of a worker up to the first one of the given kinds, and returns its kind. It
// returns "" after the worker has ended well without such an event: the verdict will tell.
func (d *director) follow(ctx context.Context, worker *process, kinds ...Kind) (Kind, error) {
	for {
		line, err := worker.next(ctx)
		var e Event
		switch {
		case err != nil || line == "" && worker.cmd.ProcessState.Success():
			return "", err
		case line == "":
			return "", worker.failure()
		case json.Unmarshal([]byte(line), &e) != nil:
			continue // not an event: an error message
		}
		d.record(e)
		if slices.Contains(kinds, e.Kind) {
			return e.Kind, nil
		}
	}
}

// serve starts the server, with its data in dir.
func (d *director) serve(ctx context.Context, dir string) (*process, error) {
	cmd := exec.Command(d.Program, "serve")
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "FENCELOCK_") })
	cmd.Env = append(cmd.Env, // the environment, because arguments must not contain secrets
		"FENCELOCK_LISTEN=127.0.0.1:0",
		"FENCELOCK_ADMIN_LISTEN=127.0.0.1:0",
		"FENCELOCK_DATA="+filepath.Join(dir, "fencelock.db"),
		"FENCELOCK_LOG_FORMAT=json",
		// The timeout is a tenth of the TTL, the maximum, because this machine runs all processes at once
		// and may be busy.
		"FENCELOCK_NODE_TIMEOUT="+(d.TTL/10).Truncate(time.Millisecond).String(),
		// New nodes need not wait for leases that no client can have.
		"FENCELOCK_BOOTSTRAP=new",
		"FENCELOCK_REDIS_ADDRS="+d.Redis,
		"FENCELOCK_DATABASE_URL="+d.DatabaseURL)
	server, err := startProcess("the server", cmd, nil)
	if err != nil {
		return nil, err
	}
	var first struct {
		Message string `json:"msg"`
		Addr    string `json:"addr"`
	}
	line, err := server.next(ctx)
	if err != nil || json.Unmarshal([]byte(line), &first) != nil || first.Message != "listening" {
		server.end() // so that all its output arrives
		return nil, errors.Join(err, server.failure())
	}
	go func() {
		for range server.lines { // otherwise the server would block when it writes its log
		}
	}()
	d.url = "http://" + first.Addr
	d.locks, err = client.New([]string{d.url}, client.WithHolder("demo"), client.WithPatience(maxStart))
	return server, err
}
