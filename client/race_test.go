//go:build race

package client_test

// droppedByRace is how many allocations a pair may have more: with the race detector a sync.Pool drops
// some of what it is given.
const droppedByRace = 4
