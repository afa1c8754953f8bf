package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Measures of the drawing, in its own units.
const (
	drawWidth  = 1040
	drawHeight = 336
	drawLeft   = 96   // where time begins
	drawRight  = 1024 // where it ends
	barHeight  = 24
	leaseDown  = 29 // from a lane's top to its leases
	leaseHigh  = 18
	laneA      = 56 // tops
	laneB      = 164
	track      = 272 // the account
	trackHigh  = 34
	letter     = 6.8 // width of a letter of the small font, at most
)

// drawing is a round's timeline as shapes with classes; the page's style
// sheet says what they look like.
type drawing struct {
	ID     int
	W, H   int
	Bars   []bar
	Lines  []line
	Heads  []polygon
	Labels []text
	taken  map[float64]float64 // how far the labels at a height reach
	scale  float64             // units a nanosecond
	style  tokenStyle
}

type bar struct {
	X, Y, W, H float64
	Class      string
}

type line struct {
	X1, Y1, X2, Y2 float64
	Class          string
}

type polygon struct{ Points, Class string }

type text struct {
	X, Y          float64
	Class, Anchor string
	Text          string
}

// draw lays the shapes of a round.
func draw(r Round, id int) *drawing {
	sc := stage(r)
	d := &drawing{ID: id, W: drawWidth, H: drawHeight, taken: map[float64]float64{}, style: r.Tokens}
	if sc.length > 0 {
		d.scale = (drawRight - drawLeft) / float64(sc.length)
	}
	d.axis(sc)
	d.endOfLease(sc)
	for i, top := range []float64{laneA, laneB} {
		d.lane(sc.lanes[i], top)
	}
	d.track(sc)
	d.meetings(sc)
	return d
}

func (d *drawing) x(at time.Duration) float64 { return drawLeft + float64(at)*d.scale }

func (d *drawing) label(x, y float64, anchor, class, content string) {
	d.Labels = append(d.Labels, text{X: x, Y: y, Anchor: anchor, Class: class, Text: content})
}

func (d *drawing) axis(sc scene) {
	step := tick(sc.length)
	for t := time.Duration(0); t < sc.length; t += step {
		x := d.x(t)
		d.Lines = append(d.Lines, line{x, 28, x, track + trackHigh, "grid"})
		d.label(x, 18, "middle", "axis", strconv.FormatFloat(t.Seconds(), 'f', -1, 64)+" s")
	}
}

func (d *drawing) endOfLease(sc scene) {
	if sc.leaseEnd == 0 {
		return
	}
	x := d.x(sc.leaseEnd)
	d.Lines = append(d.Lines, line{x, laneA + leaseDown, x, track + trackHigh + 8, "ends"})
	d.label(x, track+trackHigh+22, "middle", "ends", "A’s lease ends")
}

func (d *drawing) lane(l lane, top float64) {
	who := strings.ToLower(string(l.who))
	d.label(0, top+16, "start", "name "+who, "worker "+string(l.who))
	d.label(0, top+leaseDown+13, "start", "axis", "its lease")
	for _, ph := range l.phases {
		d.phase(ph, top, who)
	}
	for _, le := range l.leases {
		d.lease(le, top+leaseDown, who)
	}
}

func (d *drawing) phase(ph phase, top float64, who string) {
	from, to := d.x(ph.from), d.x(ph.to)
	class, content := "run "+who, ""
	switch ph.doing {
	case waiting:
		class, content = "wait "+who, "waits in line"
	case stopped:
		class, content = "stopped", "stopped"
		d.label(from, top-6, "start", "signal", "SIGSTOP")
		d.label(to, top-6, "start", "signal", "SIGCONT")
	}
	d.Bars = append(d.Bars, bar{from, top, max(to-from, 4), barHeight, class})
	if to-from > letter*float64(len(content)) && content != "" {
		d.label((from+to)/2, top+16, "middle", "in "+strings.Fields(class)[0], content)
	}
}

// lease draws a lease with its token: in it if there is room, else beside it.
func (d *drawing) lease(le lease, top float64, who string) {
	from, to := d.x(le.from), d.x(le.to)
	d.Bars = append(d.Bars, bar{from, top, max(to-from, 2), leaseHigh, "lease " + who})
	content := "token " + d.style.full(le.token)
	if to-from > letter*float64(len(content)) {
		d.label((from+to)/2, top+13, "middle", "token "+who, content)
		return
	}
	content = "token " + d.style.short(le.token)
	if to+6+letter*float64(len(content)) <= drawRight {
		d.label(to+6, top+13, "start", "token "+who, content)
		return
	}
	d.label(from-6, top+13, "end", "token "+who, content)
}

// track draws the balance over time.
func (d *drawing) track(sc scene) {
	d.label(0, track+21, "start", "name", "balance")
	from, amount, class := time.Duration(0), int64(opening), "money"
	segment := func(to time.Duration) {
		x := d.x(from)
		d.Bars = append(d.Bars, bar{x, track, d.x(to) - x, trackHigh, class})
		d.label((x+d.x(to))/2, track+22, "middle", "amount", strconv.FormatInt(amount, 10))
	}
	for _, m := range sc.writes {
		if m.refused {
			continue
		}
		segment(m.at)
		from, amount, class = m.at, m.balance, "money "+strings.ToLower(string(m.who))
		if m.lossy {
			class = "money lost"
		}
	}
	segment(sc.length)
}

// meetings draws who read and wrote the account when.
func (d *drawing) meetings(sc scene) {
	last := 0.0
	for _, m := range merge(sc.reads, sc.writes) {
		// Two lines at one place would look like one.
		x, top := max(d.x(m.at), last+5), float64(laneA+leaseDown+leaseHigh)
		last = x
		if m.who == WorkerB {
			top = laneB + leaseDown + leaseHigh
		}
		class, content := m.look()
		end, aside := float64(track), 6.0
		if m.refused {
			end -= 9
			aside += 6 // what A does next comes right after
			d.Lines = append(d.Lines, line{x - 5, end - 5, x + 5, end + 5, "cross"}, line{x - 5, end + 5, x + 5, end - 5, "cross"})
		}
		d.Lines = append(d.Lines, line{x, top, x, end, class})
		d.head(x, top, m, class)
		d.stack(x+aside, top+17, class, content)
	}
}

// look is the class and the words of a meeting.
func (m mark) look() (class, content string) {
	who := strings.ToLower(string(m.who))
	switch {
	case m.refused:
		return "write bad", "refused: 412"
	case m.lossy:
		return "write bad", fmt.Sprintf("writes %d", m.balance)
	case m.read:
		return "read " + who, fmt.Sprintf("reads %d", m.balance)
	default:
		return "write " + who, fmt.Sprintf("writes %d", m.balance)
	}
}

// head is the arrow's head: up for a read, down for a write that arrived.
func (d *drawing) head(x, top float64, m mark, class string) {
	y, size := float64(track), -7.0
	if m.read {
		y, size = top, 7.0
	}
	if !m.refused {
		points := fmt.Sprintf("%.1f,%.1f %.1f,%.1f %.1f,%.1f", x, y, x-4, y+size, x+4, y+size)
		d.Heads = append(d.Heads, polygon{points, class})
	}
}

// stack writes a label, below those that are in its way.
func (d *drawing) stack(x, y float64, class, content string) {
	for d.taken[y] > x {
		y += 14
	}
	d.taken[y] = x + letter*float64(len(content)) + 8
	d.label(x, y, "start", "note "+class, content)
}

// merge joins two lists in order of time.
func merge(a, b []mark) []mark {
	var all []mark
	for len(a) > 0 || len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].at <= b[0].at {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return all
}
