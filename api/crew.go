package api

import "time"

// crew runs the operations of batches. Its goroutines are kept for the next ones: the handlers
// need a large stack, and a goroutine that is new to each operation would grow it there.
type crew chan func()

// idleFor is how long a goroutine waits for its next operation. Below load of batches none is left.
const idleFor = time.Second

// run runs f at once, in a goroutine that is idle or a new one.
func (c crew) run(f func()) {
	select {
	case c <- f:
	default:
		go c.work(f)
	}
}

func (c crew) work(f func()) {
	idle := time.NewTimer(idleFor)
	defer idle.Stop()
	for {
		f()
		idle.Reset(idleFor)
		select {
		case f = <-c:
		case <-idle.C:
			return
		}
	}
}
