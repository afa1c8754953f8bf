package api

import "time"

// crew runs the operations of batches in goroutines that are reused. The handlers need a large stack, which a
// new goroutine for each operation would have to grow again.
type crew chan func()

// idleFor is how long a goroutine waits for its next operation. Without batches, all goroutines end.
const idleFor = time.Second

// run runs f at once, in an idle goroutine or a new one.
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
