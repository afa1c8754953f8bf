package server

import (
	"runtime/debug"
	"testing"
)

func TestASmallMemoryLimitLeavesNoRoomForTheFloor(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for limit, want := range map[int64]int{200 << 20: 0, 460 << 20: floorBytes, before: floorBytes} {
		debug.SetMemoryLimit(limit)
		if got := len(heapFloor()); got != want {
			t.Errorf("with a limit of %d bytes the floor has %d, want %d", limit, got, want)
		}
	}
}
