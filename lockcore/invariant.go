package lockcore

// Invariant names a promise that no fault of a node, a network or a clock may break, and
// that a server checks while it runs, as far as it can see it for next to nothing. Where
// one is broken, fencelock has a defect or the data of a node were changed by hand.
type Invariant string

// The invariants.
const (
	// TokenOrder: a lease has a larger token than each that was granted before it was
	// asked for, and no other's.
	TokenOrder Invariant = "token_order"
	// ExtendOrder: no lease is extended after a larger token was granted.
	ExtendOrder Invariant = "extend_order"
	// HighWater: the largest counter of an admitted node does not fall.
	HighWater Invariant = "high_water"
	// QueueOrder: a node lists its queue in the order of arrival.
	QueueOrder Invariant = "queue_order"
	// BatchReplies: a node sends one reply to each operation of a batch.
	BatchReplies Invariant = "batch_replies"
)

// Invariants are all of them.
func Invariants() []Invariant {
	return []Invariant{TokenOrder, ExtendOrder, HighWater, QueueOrder, BatchReplies}
}
