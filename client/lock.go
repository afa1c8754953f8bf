package client

import (
	"encoding/json"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// Lock is the public state of a resource. If the resource is free, only Resource and the queue are set.
type Lock struct {
	Resource  string
	Held      bool
	Holder    string          // the label of the holder; "" if it has none
	Token     fencing.Token   // of its lease
	Remaining time.Duration   // until its lease ends, unless it is extended
	TTL       time.Duration   // the last TTL given to its lease
	HeldFor   time.Duration   // since the grant
	Metadata  json.RawMessage // null if there is none
	Waiters   int             // the number of requests in the queue
	Queue     []Waiter        // the first waiters, in the order of the queue

	answer wire.Lock
}

// Waiter is a place in the queue.
type Waiter struct {
	Holder  string
	Waiting time.Duration
}

// Wire is the lock as in the service's response.
func (l Lock) Wire() wire.Lock { return l.answer }

func lockOf(answer wire.Lock) Lock {
	l := Lock{
		Resource: answer.Resource, Held: answer.Held, Token: fencing.Token(answer.FencingToken),
		Remaining: duration(answer.RemainingMS), TTL: duration(answer.TTLMS), HeldFor: duration(answer.HeldMS),
		Metadata: answer.Metadata, Waiters: answer.Waiters, answer: answer,
	}
	if answer.Holder != nil {
		l.Holder = *answer.Holder
	}
	for _, w := range answer.Queue {
		l.Queue = append(l.Queue, Waiter{Holder: w.Holder, Waiting: time.Duration(w.WaitingMS) * time.Millisecond})
	}
	return l
}

func duration(ms *int64) time.Duration {
	if ms == nil {
		return 0
	}
	return time.Duration(*ms) * time.Millisecond
}
