package redlock

import "context"

// rounds are the places of the acquires that ask the nodes at the same time.
//
// A round has a time limit that is small against a lease (rule 18), and with
// thousands of them under way each would stand in the nodes' queues for longer
// than that: all would fail, and the nodes work for nothing. So who comes when
// all places are taken waits for one, first come, first served, before its
// clock starts. Extends and releases never wait: the former have no time to
// lose, and there is at most one of the latter for each acquire.
type inFlight chan struct{}

// enter takes a place. It returns ctx's cause when that ends first.
func (r inFlight) enter(ctx context.Context) error {
	select {
	case r <- struct{}{}:
		return nil
	default:
	}
	select {
	case r <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r inFlight) leave() { <-r }
