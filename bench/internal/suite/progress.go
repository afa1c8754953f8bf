package suite

import (
	"fmt"
	"io"
	"time"
)

// progress prints the present step and the remaining time.
type progress struct {
	out   io.Writer
	begun time.Time
	total int
	n     int
	left  time.Duration // the planned time of the steps that are left
	done  time.Duration // the planned time of the steps that are done
}

func newProgress(out io.Writer, steps []step) *progress {
	p := &progress{out: out, begun: time.Now(), total: len(steps)}
	for _, s := range steps {
		p.left += s.cost
	}
	return p
}

func (p *progress) elapsed() time.Duration { return time.Since(p.begun) }

// begin announces a step.
func (p *progress) begin(s step) {
	p.n++
	_, _ = fmt.Fprintf(p.out, "[%3d/%d] %-52s about %s to go\n", p.n, p.total, s.label, p.eta().Round(time.Second))
}

// eta is the planned time of the remaining steps, scaled by how much longer than planned the
// steps so far took.
func (p *progress) eta() time.Duration {
	stretch := 1.0
	if p.done > 10*time.Second {
		stretch = float64(p.elapsed()) / float64(p.done)
	}
	return time.Duration(float64(p.left) * stretch)
}

func (p *progress) end(s step) {
	p.left -= s.cost
	p.done += s.cost
}

// skip removes a step from the plan.
func (p *progress) skip(s step) {
	p.n++
	p.left -= s.cost
}
