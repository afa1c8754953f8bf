//go:build race

package client_test

// droppedByRace is how many more allocations a pair may make with the race detector, under which a sync.Pool drops
// some of its objects.
const droppedByRace = 4
