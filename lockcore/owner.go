package lockcore

import "context"

type callerKey struct{}

// WithCaller says on whose behalf the calls under ctx are made. A lease that is
// acquired under an owner answers to this owner alone: to anybody else its id is
// one of a lease that has ended (ErrNotHeld), since the seal of a lease id is
// made for its owner. The empty owner is one like any other. No server keeps a
// table for that, and the nodes know no owners.
func WithCaller(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf gives what WithCaller said, "" for nothing.
func CallerOf(ctx context.Context) string {
	caller, _ := ctx.Value(callerKey{}).(string)
	return caller
}
