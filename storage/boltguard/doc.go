// Package boltguard is a fencing.Guard in a bbolt file: the service's embedded
// default. The file belongs to whoever opened it; the guard keeps to buckets of
// its own, so it shares the file with a lock node.
//
// Every method that changes something returns after the file was synced. Callers that arrive during a sync
// share the next sync.
package boltguard
