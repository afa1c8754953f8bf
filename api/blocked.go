package api

import (
	"net/http"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/blocked"
)

// blocked is GET /blocked.
func (s *Server) blocked(w *exchange, r *http.Request) error {
	params, err := query(r, blockedParameters...)
	if err != nil {
		return err
	}
	name := params["name"]
	if err := lockcore.ValidateText("name", name, 0); err != nil {
		return err
	}
	report, err := blocked.Find(r.Context(), s.Service, blocked.Question{Caller: w.caller, Name: name, Show: s.mayRead(w)})
	if err != nil {
		return err
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, blockedBody(name, report))
}

func blockedBody(name string, r blocked.Report) wire.Blocked {
	body := wire.Blocked{
		Name:       name,
		Locks:      make([]wire.Lock, len(r.Locks)),
		Holders:    make([]wire.BlockedHolder, len(r.Chain)),
		Deadlocks:  make([]wire.Deadlock, len(r.Deadlocks)),
		Unlabelled: r.Unlabelled,
		Truncated:  r.Truncated,
	}
	for i, lock := range r.Locks {
		body.Locks[i] = lockBody(lock)
	}
	for i, party := range r.Chain {
		body.Holders[i] = wire.BlockedHolder{Holder: party.Holder, Holds: make([]wire.Hold, len(party.Holds)), Waits: waitBodies(party.Waits)}
		for j, hold := range party.Holds {
			body.Holders[i].Holds[j] = wire.Hold{
				Resource: hold.Resource, FencingToken: int64(hold.Token), HeldMS: millisDown(hold.For),
				RemainingMS: millisUp(hold.Remaining), Waiters: hold.Waiters,
			}
		}
	}
	for i, deadlock := range r.Deadlocks {
		lease := deadlock.Break
		body.Deadlocks[i] = wire.Deadlock{
			DeadlockedMS: millisDown(deadlock.For),
			Waits:        waitBodies(deadlock.Waits),
			Break:        wire.LeaseToBreak{Resource: lease.Resource, FencingToken: int64(lease.Token), Holder: lease.Holder},
		}
	}
	return body
}

func waitBodies(waits []blocked.Wait) []wire.Wait {
	bodies := make([]wire.Wait, len(waits))
	for i, wait := range waits {
		bodies[i] = wire.Wait{
			Holder: wait.Holder, Resource: wait.Resource, Position: wait.Position, WaitingMS: millisDown(wait.For),
			HeldBy: wait.HeldBy, FencingToken: int64(wait.Token),
		}
	}
	return bodies
}
