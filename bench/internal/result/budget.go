package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"
)

// Fall is by how much a figure may be worse than that of the committed run.
const Fall = 0.05

// Pace is by how much the machine's speed may differ from that of the committed run: ratios
// are not the same on a machine that is as fast only as its neighbours leave it.
const Pace = 0.25

// Figures are what the checks of a run came to. They are committed beside its page, for
// the runs after it.
type Figures struct {
	CPU    string
	Commit string
	Begun  time.Time
	Floor  float64            // processor time of a pair of bare HTTP, µs; 0 if not measured
	Is     map[string]float64 // by Check.Text
}

// floor is the cost of work that no change of fencelock makes cheaper.
func (s *Set) floor() float64 {
	k := Key{Uncontended, "64", BareHTTP}
	if cost := s.Of(k, LoadCPU).Median + s.Of(k, ServiceCPU).Median; !math.IsNaN(cost) {
		return cost
	}
	return 0
}

// Figures are the run's.
func (s *Set) Figures() Figures {
	f := Figures{CPU: s.Machine.CPU, Commit: s.Machine.Commit, Begun: s.Machine.Begun, Floor: s.floor(), Is: map[string]float64{}}
	for _, c := range s.Checks() {
		if !math.IsNaN(c.Got) {
			f.Is[c.Text] = c.Got
		}
	}
	return f
}

// ReadFigures reads those of a run; there are none where there is no file.
func ReadFigures(path string) (f Figures, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &f) //nolint:musttag // as report.Write has written them
	}
	return f, err
}

// Compare has Checks say what the figures were in another run, and which fell. It
// returns why the runs cannot be compared, "" if they can: others used this machine, too,
// the rounds were few, or it is another machine, or not as fast.
func (s *Set) Compare(before Figures) (why string) {
	floor := s.floor()
	switch {
	case len(before.Is) == 0:
		return "there is no committed run"
	case s.Quick:
		return "this run was quick"
	case s.Machine.Foreign > Noisy:
		return "this run was noisy"
	case s.Machine.CPU != before.CPU:
		return fmt.Sprintf("the committed run was on another machine (%s)", before.CPU)
	case before.Floor > 0 && floor > 0 && math.Abs(math.Log(floor/before.Floor)) > math.Log1p(Pace):
		return fmt.Sprintf("a pair of bare HTTP took %.0f µs of the processors, and %.0f in the committed run: the machine is not as fast as it was", floor, before.Floor)
	}
	s.before = before
	return ""
}

// compare notes what the figure was, and whether it fell.
func (c *Check) compare(before Figures) {
	was, known := before.Is[c.Text]
	if !known || c.Verdict == Unknown {
		c.Was = math.NaN()
		return
	}
	c.Was = was
	change := c.Got / was
	if !c.more {
		change = was / c.Got
	}
	c.Fell = change < 1-Fall
}
