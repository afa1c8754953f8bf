//go:build !race

package client_test

const droppedByRace = 0 // see race_test.go
