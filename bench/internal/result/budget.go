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

// Fall is how much worse than in the committed run a figure may be.
const Fall = 0.05

// Pace is how much the machine's speed may differ from that of the committed run. Ratios can't be
// compared if other tenants slow the machine down more than that.
const Pace = 0.25

// Figures are the values of a run's checks. They are committed next to the run's page, so that
// later runs can be compared with them.
type Figures struct {
	CPU    string
	Commit string
	Begun  time.Time
	Floor  float64            // processor time of a pair of bare HTTP, µs; 0 if not measured
	Is     map[string]float64 // by Check.Text
}

// floor is the cost of work that no change of fencelock can make cheaper.
func (s *Set) floor() float64 {
	k := Key{Uncontended, "64", BareHTTP}
	if cost := s.Of(k, LoadCPU).Median + s.Of(k, ServiceCPU).Median; !math.IsNaN(cost) {
		return cost
	}
	return 0
}

// Figures returns the figures of this run.
func (s *Set) Figures() Figures {
	f := Figures{CPU: s.Machine.CPU, Commit: s.Machine.Commit, Begun: s.Machine.Begun, Floor: s.floor(), Is: map[string]float64{}}
	for _, c := range s.Checks() {
		if !math.IsNaN(c.Got) {
			f.Is[c.Text] = c.Got
		}
	}
	return f
}

// ReadFigures reads the figures of a run. If there is no file, it returns empty figures.
func ReadFigures(path string) (f Figures, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &f) //nolint:musttag // report.Write has written them
	}
	return f, err
}

// Compare makes Checks report what the figures were in another run, and which of them fell. If
// the runs cannot be compared, it returns the reason: other programs used this machine, there
// were too few rounds, or the machine is another one or differs in speed. Otherwise it returns
// "".
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
		return fmt.Sprintf("a pair of bare HTTP took %.0f µs of the processors, and %.0f in the committed run: the machine has another speed", floor, before.Floor)
	}
	s.before = before
	return ""
}

// compare records the earlier value of a figure, and whether the figure fell.
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
