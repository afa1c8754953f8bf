package node

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Node is one independent vote: a Redis master, the embedded file, or a model in a test. Each operation on it
// is atomic. The gate decides each reply at the moment of the operation (rule 6): votes count only while the
// node is admitted in the caller's epoch.
//
// Every method may be called from any goroutine. Besides the errors that a method names, it may return others,
// such as a broken connection; the call may then have taken effect.
type Node interface {
	Voter
	Reader
	Admittee
	Waker
}

// Voter takes part in rounds.
type Voter interface {
	// Name is the node's public name, the same on every server: host:port/database
	// for Redis. It contains no secret.
	Name() string
	// Submit queues op and returns at once. It delivers exactly one reply to sink, under the given index, from
	// any goroutine, possibly before Submit returns. A node that cannot take the operation now (its queue is
	// full, or it is known to be down) delivers a failure. Operations take effect in the order in which they
	// were submitted. The node owns op from then on, so the caller must not change it.
	Submit(op *Op, index int, sink Sink)
}

// Sink receives the replies of a round. Deliver must not block.
type Sink interface {
	Deliver(index int, reply Reply)
}

// Epoch is a configuration epoch: it numbers the sets of nodes that are admitted
// together. Every rejoin and every bootstrap creates a larger one (rule 9). It is
// below 2^53.
type Epoch int64

// Waker notifies a server when one of its tickets becomes first in its queue. The node notifies the server of
// the first living ticket, and no other, in these cases: a release or a retraction deletes a lock, a
// release-after shortens it, the first ticket of a free lock is dequeued, or an acquire is Queued. A
// notification may get lost.
type Waker interface {
	// Subscribe calls w until ctx ends, and reconnects by itself. A server subscribes
	// once to each node.
	Subscribe(ctx context.Context, server string, w Listener)
}

// Listener receives a Waker's notifications. Neither method may block.
type Listener interface {
	// Wake says that the ticket is first in the resource's queue on this node. The ticket's Arrival is not
	// set.
	Wake(resource string, t Ticket)
	// Subscribed says that a subscription begins. Earlier notifications may be lost.
	Subscribed()
}

// Reader reads an admitted node, for a rejoin (rules 7, 8 and 21) and for listings.
type Reader interface {
	// InstallEpoch is a fenced read: it installs epoch on an admitted node whose own
	// epoch is smaller, and returns the node's marks. From then on the node refuses
	// votes in an older epoch. Errors: ErrStaleEpoch if the node's epoch is not
	// smaller, ErrNotAdmitted.
	InstallEpoch(ctx context.Context, epoch Epoch) (Marks, error)
	// Survey lists the locks of a node that is admitted in exactly this epoch, one page per call. Call it with
	// the cursor "" for the first page; an empty next ends the survey. It lists every lock that exists during
	// the whole survey at least once. Errors: ErrStaleEpoch, ErrNotAdmitted.
	Survey(ctx context.Context, epoch Epoch, cursor string) (locks []CarriedLock, next string, err error)
	// Counters returns the effective counter of each resource, in their order, on a
	// node that is admitted in exactly this epoch. A counter that is missing reads as
	// the high-water mark (rule 4). Errors: ErrStaleEpoch, ErrNotAdmitted.
	Counters(ctx context.Context, epoch Epoch, resources []string) ([]fencing.Token, error)
	// Scan lists locked resources that begin with prefix, about limit of them. A page may be empty although
	// more follow. cursor and next are as for Survey. Errors: ErrNotAdmitted; lockcore.FieldError for a cursor
	// that no call returned.
	Scan(ctx context.Context, prefix, cursor string, limit int) (resources []string, next string, err error)
	// Servers lists the servers whose last heartbeat has not expired, each once.
	Servers(ctx context.Context) ([]string, error)
}

// Clocked is a Node whose expiries follow a clock of its own. If that clock is set, locks expire early or
// late, and the locks themselves do not show it (rule 22).
type Clocked interface {
	// Time reads the node's clock, whether it is admitted or not.
	Time(ctx context.Context) (time.Time, error)
	// Expel revokes the admission of a node in this incarnation and this epoch, and begins its quarantine as
	// Quarantine does. It returns ErrRaced if the node is in another incarnation or epoch, or not admitted.
	Expel(ctx context.Context, incarnation string, epoch Epoch, note string) error
}

var (
	// ErrNotAdmitted: the node is not admitted, so the gate is shut.
	ErrNotAdmitted = errors.New("node is not admitted")
	// ErrStaleEpoch: the node is in another epoch. See StaleEpochError.
	ErrStaleEpoch = errors.New("node is in another epoch")
	// ErrRaced: another server admitted the node meanwhile, or the node restarted.
	ErrRaced = errors.New("node changed during its admission")
	// ErrForeign: the node holds data of another cluster or program. Nothing was changed.
	ErrForeign = errors.New("node holds data of something else")
	// ErrUnreachableToken: the operation's token is above every token that the cluster can have reached
	// (Reachable). Nothing was changed.
	ErrUnreachableToken = errors.New("the token is beyond what this cluster can have reached")
	// ErrQueueFull: the maximum number of operations wait for the node.
	ErrQueueFull = errors.New("node queue is full")
	// ErrNodeDown: the node did not respond. Operations fail at once until it does.
	ErrNodeDown = errors.New("node is down")
)

// StaleEpochError is ErrStaleEpoch with the node's epoch.
type StaleEpochError struct{ Epoch Epoch }

func (e *StaleEpochError) Error() string { return ErrStaleEpoch.Error() }

// Is makes errors.Is(err, ErrStaleEpoch) true.
func (e *StaleEpochError) Is(target error) bool { return target == ErrStaleEpoch }
