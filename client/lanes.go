package client

import (
	"context"
	"fmt"
	"time"
)

// A client has a bounded number of connections to each server. They form three lanes, so that calls of one kind
// do not keep calls of another kind from being sent. A call whose lane is full waits in the client's own queue,
// and its time limit begins when it is sent.
const (
	waitLane  = 192 // requests that wait in the queue of a resource
	callLane  = 48  // calls that don't wait, many of which share a batch
	renewLane = 16  // extends: a burst of calls must not cost the client its leases
	// allLanes is the number of idle connections that the transport keeps open.
	allLanes = waitLane + callLane + renewLane
)

// lane is the set of connections to one server for requests of one kind. It holds one element for each request
// under way.
type lane chan struct{}

// enter takes a place. If no place becomes free within the limit, or before ctx ends, it returns errNotSent.
func (l lane) enter(ctx context.Context, limit time.Duration) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case l <- struct{}{}:
		return nil
	case <-timer.C:
		return fmt.Errorf("%w: %d calls of this client were under way to the server for %s", errNotSent, cap(l), limit)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errNotSent, ctx.Err())
	}
}

// try takes a place if one is free.
func (l lane) try() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l lane) leave() { <-l }

// busy reports whether more than half of the places are taken. Requests then should not keep their places for
// long.
func (l lane) busy() bool { return len(l) > cap(l)/2 }

// laneOf returns the lane of a request that does not wait.
func (p *peer) laneOf(extends bool) lane {
	if extends {
		return p.renewals
	}
	return p.calls
}
