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

// Figures are what the checks of a run came to. They are committed beside its page, for
// the runs after it.
type Figures struct {
	CPU    string
	Commit string
	Begun  time.Time
	Is     map[string]float64 // by Check.Text
}

// Figures are the run's.
func (s *Set) Figures() Figures {
	f := Figures{CPU: s.Machine.CPU, Commit: s.Machine.Commit, Begun: s.Machine.Begun, Is: map[string]float64{}}
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
		err = json.Unmarshal(raw, &f)
	}
	return f, err
}

// Compare has Checks say what the figures were in another run, and which fell. It
// returns why the runs cannot be compared, "" if they can: others used this machine, too,
// the rounds were few, or it is another machine.
func (s *Set) Compare(before Figures) (why string) {
	switch {
	case len(before.Is) == 0:
		return "there is no committed run"
	case s.Quick:
		return "this run was quick"
	case s.Machine.Foreign > Noisy:
		return "this run was noisy"
	case s.Machine.CPU != before.CPU:
		return fmt.Sprintf("the committed run was on another machine (%s)", before.CPU)
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
