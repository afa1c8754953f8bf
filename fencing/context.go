package fencing

import "context"

type contextKey struct{}

// NewContext carries a token to where the storage is written, in a service
// that takes it from its callers (see package fencinghttp).
func NewContext(ctx context.Context, token Token) context.Context {
	return context.WithValue(ctx, contextKey{}, token)
}

// FromContext gives the token that NewContext put in; ok is false without one.
func FromContext(ctx context.Context) (token Token, ok bool) {
	token, ok = ctx.Value(contextKey{}).(Token)
	return token, ok
}
