package redlock

import "context"

// inFlight bounds the acquires that ask the nodes at the same time.
//
// A round has a time limit that is small against a lease (rule 18). Thousands at
// once would each wait in the nodes' input for longer than that: all would fail.
// So an acquire beyond the bound waits before its clock starts, first come, first
// served. Extends and releases never wait: an extend has no time to lose, and there
// is one release at most for an acquire.
type inFlight chan struct{}

// enter waits for a place. It returns ctx's cause when ctx ends first.
func (f inFlight) enter(ctx context.Context) error {
	select {
	case f <- struct{}{}:
		return nil
	default:
	}
	select {
	case f <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f inFlight) leave() { <-f }
