package boltnode

import (
	"log/slog"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Options tune a Node. The zero value of a field takes its default.
type Options struct {
	// CounterTTL is how long a counter stays after its last use; default 24h.
	// A counter that has gone reads as the largest ever seen in the file.
	CounterTTL time.Duration
	// Floor, where it is larger than what the file knows, is what tokens start
	// above: a guard's highest mark, say. Default 0.
	Floor fencing.Token
	// Queue bounds the operations that wait; default 8192. More fail at once
	// with lockcore.ErrQueueFull.
	Queue int
	// Batch bounds the operations of one transaction; default 512.
	Batch  int
	Logger *slog.Logger // default discards
	Meter  Meter        // default discards

	clock clock
	sweep sweeping
	blank bool // do not found: a node as an empty Redis is one
}

func (o Options) withDefaults() Options {
	defaultTo(&o.CounterTTL, 24*time.Hour)
	defaultTo(&o.Queue, 8192)
	defaultTo(&o.Batch, 512)
	defaultTo(&o.sweep.page, 500)
	defaultTo(&o.sweep.pause, 20*time.Millisecond)
	defaultTo(&o.sweep.rest, time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = unmetered{}
	}
	if o.clock.wall == nil {
		o.clock = systemClock()
	}
	return o
}

// Meter is told what the node's committer does, for statistics. It must not block.
type Meter interface {
	// Batch tells of a transaction with so many operations, and how long it
	// took; of one that failed, too.
	Batch(operations int, took time.Duration, failed bool)
}

type unmetered struct{}

func (unmetered) Batch(int, time.Duration, bool) {}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// clock is the two clocks of a machine: one that only goes forward, and one
// that is set and means something to the next process.
type clock struct {
	mono func() time.Duration // since some moment
	wall func() time.Time
}

func systemClock() clock {
	began := time.Now()
	return clock{mono: func() time.Duration { return time.Since(began) }, wall: time.Now}
}

// moment is one look at both clocks.
type moment struct {
	mono time.Duration
	wall time.Time
}

func (c clock) now() moment { return moment{mono: c.mono(), wall: c.wall()} }
