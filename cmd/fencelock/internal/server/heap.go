package server

import "runtime/debug"

// floorBytes is the size of the heap's floor.
const floorBytes = 16 << 20

// heapFloor returns memory that the server keeps and never touches. The collector runs whenever the heap has
// doubled. A server under load has a few live megabytes, which double many times a second; together with the
// floor they double half as often. The system has no pages for memory that is never touched, so the floor costs
// at most its own size in garbage. A small memory limit (GOMEMLIMIT) leaves no room for it.
func heapFloor() []byte {
	if debug.SetMemoryLimit(-1) < 16*floorBytes {
		return nil
	}
	return make([]byte, floorBytes)
}
