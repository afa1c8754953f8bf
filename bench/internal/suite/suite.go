// Package suite is the benchmark itself: it decides which contenders run which scenarios, in
// which order, on which servers.
package suite

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/bench/internal/cpu"
	"github.com/fencelock/fencelock/bench/internal/load"
	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/result"
	"github.com/fencelock/fencelock/bench/internal/stand"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// Options say what to run.
type Options struct {
	Root   string        // of the fencelock module
	Quick  bool          // measures less of everything, in under two minutes
	Rounds int           // of every measurement; 0 for the default
	Only   []string      // names of sections; empty for all
	With   []string      // names of contenders; empty for all
	Levels []int         // numbers of workers; empty for the default
	Budget time.Duration // the time after which no further step begins; 0 for no limit
	Beside string        // another build of the server, as a contender beside this tree's; empty for none
	Log    io.Writer     // progress
}

// Suite runs a benchmark.
type Suite struct {
	opts Options
	size size
	set  *result.Set

	program string // the built server
	benches []*bench
	main    *bench
	fsync   *bench
	foreign foreignShare
}

// New prepares a run.
func New(opts Options) *Suite {
	s := &Suite{opts: opts, size: fullSize(), set: &result.Set{Quick: opts.Quick}}
	if opts.Quick {
		s.size = quickSize()
	}
	if opts.Rounds > 0 {
		s.size.rounds, s.size.hotRounds, s.size.faultRounds, s.size.minorRounds = opts.Rounds, opts.Rounds, opts.Rounds, opts.Rounds
	}
	if len(opts.Levels) > 0 {
		s.size.levels, s.size.fsyncLevels, s.size.clients = opts.Levels, opts.Levels, opts.Levels
	}
	return s
}

// step is one unit of work, with its expected duration.
type step struct {
	label string
	cost  time.Duration
	do    func(ctx context.Context) error
	vital bool   // the run cannot continue without it
	peer  string // the contender that it measures, "" if it measures none
}

// Run performs all steps. After an error it still returns what has been measured.
func (s *Suite) Run(ctx context.Context) (*result.Set, error) {
	begun := time.Now()
	redisnode.LogLibrary(slog.New(slog.DiscardHandler)) // also the library's messages about other clients
	s.set.Machine = describe(ctx, s.opts.Root)
	defer s.closeAll()
	err := s.perform(ctx, s.plan())
	s.set.Machine.Took = time.Since(begun).Round(time.Second)
	s.set.Machine.Foreign = s.foreign.share()
	return s.set, err
}

func (s *Suite) closeAll() {
	for len(s.benches) > 0 {
		s.close(s.benches[0])
	}
}

// perform performs the steps one after the other. If a step fails, it notes that and continues
// with the next step, unless the step is vital.
func (s *Suite) perform(ctx context.Context, steps []step) error {
	p := newProgress(s.opts.Log, steps)
	for _, st := range steps {
		if s.opts.Budget > 0 && p.elapsed() > s.opts.Budget && !st.vital {
			p.skip(st)
			scenario, _, _ := strings.Cut(st.label, " · ")
			s.note("out of time, so not all was measured of: " + scenario)
			continue
		}
		p.begin(st)
		err := stand.Guard(func() error { return st.do(ctx) })
		p.end(st)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && st.vital {
			return fmt.Errorf("%s: %w", st.label, err)
		}
		if err != nil {
			s.note(fmt.Sprintf("%s failed: %v", st.label, err))
		}
	}
	return nil
}

// note adds a note to the page, unless the page has it already.
func (s *Suite) note(text string) {
	if !slices.Contains(s.set.Notes, text) {
		s.set.Notes = append(s.set.Notes, text)
		_, _ = fmt.Fprintln(s.opts.Log, "note:", text)
	}
}

// section is a group of steps that -only can select.
type section struct {
	name  string
	steps func() []step
}

func (s *Suite) sections() []section {
	return []section{
		{"uncontended", s.uncontended},
		{"connections", s.connections},
		{"clients", s.clients},
		{"network", s.network},
		{"starved", s.starved},
		{"hot", s.hot},
		{"faults", s.faults}, // the last section on these nodes, because it kills one of them
		{"fsync", s.fsynced},
	}
}

// Sections returns the names that Options.Only accepts.
func Sections() []string {
	var names []string
	for _, sec := range new(Suite).sections() {
		names = append(names, sec.name)
	}
	return names
}

func (s *Suite) plan() []step {
	steps := []step{{label: "build fencelock, start servers", cost: 12 * time.Second, do: s.start, vital: true}}
	for _, sec := range s.sections() {
		if len(s.opts.Only) == 0 || slices.Contains(s.opts.Only, sec.name) {
			steps = append(steps, sec.steps()...)
		}
	}
	return slices.DeleteFunc(steps, func(st step) bool {
		return st.peer != "" && len(s.opts.With) > 0 && !slices.Contains(s.opts.With, st.peer)
	})
}

// measure returns the step that measures one round of one peer.
func (s *Suite) measure(on func() *bench, k result.Key, round int, job load.Job) step {
	return step{
		label: strings.Join([]string{k.Scenario, k.Variant, k.Peer, fmt.Sprintf("round %d", round+1)}, " · "),
		peer:  k.Peer,
		cost:  job.Warm + job.Measure + overhead(job),
		do:    func(ctx context.Context) error { return s.round(ctx, on(), k, round, job) },
	}
}

// overhead estimates how long opening and closing the sessions takes.
func overhead(job load.Job) time.Duration {
	cost := 40*time.Millisecond + time.Duration(job.Workers)*200*time.Microsecond
	if job.Hot {
		cost += 300 * time.Millisecond
	}
	return cost
}

func (s *Suite) round(ctx context.Context, b *bench, k result.Key, round int, job load.Job) error {
	c, ok := b.contenders[k.Peer]
	if !ok {
		return nil // a note already says why the contender is missing
	}
	err := s.roundOf(ctx, c, k, round, job)
	if err == nil && job.Hot {
		b.settle(ctx)
	}
	return err
}

func (s *Suite) roundOf(ctx context.Context, c contender, k result.Key, round int, job load.Job) error {
	before, begun := s.usage(c), time.Now()
	o, err := load.Run(ctx, c.peer, job, func() load.Usage { return s.usage(c) })
	if err != nil {
		return err
	}
	s.foreign.add(s.usage(c).Sub(before).Foreign, time.Since(begun))
	s.set.Add(k, round, o)
	return nil
}

// usage reads the processor time used so far.
func (s *Suite) usage(c contender) load.Usage {
	u := load.Usage{Load: cpu.Self() + c.load.CPU(), Service: c.service.CPU(), Store: c.store.CPU()}
	if machine, err := cpu.Machine(); err == nil {
		u.Foreign = machine - u.Load - s.ours()
	}
	return u
}

// ours is the processor time of all servers that this run started, including those that the
// present contender does not use.
func (s *Suite) ours() (total time.Duration) {
	for _, b := range s.benches {
		total += b.CPU()
	}
	return total
}

// contender is a peer with the servers that it uses, if any.
type contender struct {
	peer           peer.Peer
	load           servers // the processes of its workers, if they are not in this process
	service, store servers
}

// servers is a group of servers that this run started.
type servers []server

// server is one process or several. Equal pointers mean the same server, which is counted once.
type server interface{ CPU() time.Duration }

// CPU is their processor time.
func (s servers) CPU() (total time.Duration) {
	for _, each := range s {
		total += each.CPU()
	}
	return total
}
