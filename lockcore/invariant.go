package lockcore

// Invariant names a promise that no fault of a node, a network or a clock may break. A running server checks
// it as far as that is nearly free. If one is broken, fencelock has a bug, or somebody has changed a node's
// data by hand.
type Invariant string

// The invariants.
const (
	// TokenOrder: the token of a lease is larger than that of every lease granted before the request for it,
	// and no two leases share a token.
	TokenOrder Invariant = "token_order"
	// ExtendOrder: a lease is not extended after a larger token was granted.
	ExtendOrder Invariant = "extend_order"
	// HighWater: the largest counter of an admitted node never decreases.
	HighWater Invariant = "high_water"
	// QueueOrder: a node lists its queue in the order of arrival.
	QueueOrder Invariant = "queue_order"
	// BatchReplies: a node sends one reply to each operation of a batch.
	BatchReplies Invariant = "batch_replies"
)

// Invariants returns all of them.
func Invariants() []Invariant {
	return []Invariant{TokenOrder, ExtendOrder, HighWater, QueueOrder, BatchReplies}
}
