package lockcore

import "context"

type ownerKey struct{}

// WithOwner says on whose behalf the calls under ctx are made. A lease that is
// acquired under an owner answers to this owner alone: to anybody else its id is
// one of a lease that has ended (ErrNotHeld), since the seal of a lease id is
// made for its owner. The empty owner is one like any other. No server keeps a
// table for that, and the nodes know no owners.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

// OwnerOf gives what WithOwner said, "" for nothing.
func OwnerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}
