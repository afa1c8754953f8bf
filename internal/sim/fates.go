package sim

import (
	"math/rand/v2"
	"time"
)

// fates draws what happens to messages. Every link has its own stream, so that removing a fault from a plan
// does not change the fates on other links. This is what makes shrinking work.
type fates struct {
	seed  uint64
	drawn map[[3]int]uint64
	pcg   *rand.PCG
	rng   *rand.Rand
}

func newFates(seed uint64) fates {
	pcg := rand.NewPCG(0, 0)
	return fates{seed: seed, drawn: make(map[[3]int]uint64), pcg: pcg, rng: rand.New(pcg)}
}

// draw returns a random source for the next message of the link, valid until the next draw.
func (f *fates) draw(server, epoch, simNode int) *rand.Rand {
	link := [3]int{server, epoch, simNode}
	f.drawn[link]++
	f.pcg.Seed(f.seed^uint64(server+1)<<56^uint64(epoch+1)<<40^uint64(simNode+1)<<32, f.drawn[link])
	return f.rng
}

// chance is true with probability p.
func chance(rng *rand.Rand, p float64) bool { return p > 0 && rng.Float64() < p }

// between draws a duration from [least, most). It is never a whole number of microseconds, so that no event
// coincides with a timer.
func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	d := least + time.Duration(rng.Int64N(int64(most-least)))
	if d%time.Microsecond == 0 {
		d++
	}
	return d
}
