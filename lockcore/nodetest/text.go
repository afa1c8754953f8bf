package nodetest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// line is a command of a text: a verb, words, and key=value pairs. A word or a value with
// blanks is quoted as in Go.
type line struct {
	verb  string
	words []string
	pairs map[string]string
}

func parseLine(text string) (l line, err error) {
	l.pairs = make(map[string]string)
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		var key, value string
		if end := strings.IndexAny(rest, " =\""); end >= 0 && rest[end] == '=' {
			key, rest = rest[:end], rest[end+1:]
		}
		if value, rest, err = parseWord(rest); err != nil {
			return l, fmt.Errorf("%s: %w", text, err)
		}
		switch {
		case key != "":
			l.pairs[key] = value
		case l.verb == "":
			l.verb = value
		default:
			l.words = append(l.words, value)
		}
	}
	return l, nil
}

func parseWord(text string) (word, rest string, err error) {
	if quoted, err := strconv.QuotedPrefix(text); err == nil && text[0] == '"' {
		word, err = strconv.Unquote(quoted)
		return word, text[len(quoted):], err
	}
	word, rest, _ = strings.Cut(text, " ")
	return word, rest, nil
}

// quoted formats a word for a text, quoted if parseWord needs that.
func quoted(word string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(" \"=", r) }
	if word == "" || strings.ContainsFunc(word, odd) {
		return strconv.Quote(word)
	}
	return word
}

// scale converts between the relative numbers of a text and a node's own, so that the text is the same on
// every node. The zero scale prints numbers unchanged.
type scale struct {
	base   fencing.Token          // of "+0": the high-water mark when the node was admitted
	first  node.Epoch             // of "E": the epoch in which it was admitted
	times  map[time.Duration]bool // the times that commands gave
	passed func() time.Duration   // maximum time that the node's clock may have counted since the beginning
	given  map[string]string      // the values of "every": $it, and those derived from it
}

// token reads "+5" or "-1", relative to the base; "7", absolute; "max" or "max-1"; "reach+1", relative to the
// largest that a node accepts; or "now", where a bootstrap would begin.
func (s *scale) token(text string) (fencing.Token, error) {
	var from fencing.Token
	switch {
	case text == "now":
		return max(100, node.FloorAt(time.Now())), nil
	case strings.HasPrefix(text, "max"):
		from, text = fencing.MaxToken, text[len("max"):]
	case strings.HasPrefix(text, "reach"):
		from, text = s.base+node.MaxTokensAhead, text[len("reach"):]
	case strings.HasPrefix(text, "+"), strings.HasPrefix(text, "-"):
		from = s.base
	}
	if text == "" {
		return from, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return from + fencing.Token(n), err
}

func (s *scale) printToken(t fencing.Token) string {
	const near = 10_000
	switch reach := s.base + node.MaxTokensAhead; {
	case s.base == 0, t == 0:
		return strconv.FormatInt(int64(t), 10)
	case max(t-s.base, s.base-t) < near:
		return fmt.Sprintf("%+d", t-s.base)
	case max(t-reach, reach-t) < near:
		return fmt.Sprintf("reach%+d", t-reach)
	}
	return strconv.FormatInt(int64(t), 10)
}

// parseEpoch reads "E", "E+1" or an absolute number.
func (s *scale) parseEpoch(text string) (node.Epoch, error) {
	own, relative := strings.CutPrefix(text, "E")
	if relative && own == "" {
		return s.first, nil
	}
	n, err := strconv.ParseInt(own, 10, 64)
	if relative {
		n += int64(s.first)
	}
	return node.Epoch(n), err
}

func (s *scale) printEpoch(e node.Epoch) string {
	const near = 1000
	switch {
	case e == 0, s.first == 0, max(e-s.first, s.first-e) > near:
		return strconv.FormatInt(int64(e), 10)
	case e == s.first:
		return "E"
	}
	return fmt.Sprintf("E%+d", e-s.first)
}

func (s *scale) time(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if s.times != nil {
		s.times[d] = true
	}
	return d, err
}

// printTime prints a remaining time. If it can be the rest of a time that a command gave, it prints that time,
// because a node with a real clock reports a little less at every call.
func (s *scale) printTime(left time.Duration) string {
	if s.passed != nil && left > 0 {
		for _, given := range slices.Sorted(maps.Keys(s.times)) {
			if left <= given && given <= left+s.passed() {
				left = given
				break
			}
		}
	}
	return exactly(left)
}

// exactly prints a time in full.
func exactly(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// print prints a text of a caller.
func (s *scale) print(text string) string {
	for name, value := range s.given {
		if text == value {
			return name
		}
	}
	return quoted(text)
}

// printTicket prints id@server:arrival, and its holder unless it is the usual one.
func (s *scale) printTicket(t node.Ticket) string {
	text := t.ID + "@" + t.Server
	if t.Arrival != 0 {
		text += ":" + strconv.FormatInt(t.Arrival, 10)
	}
	if t.Holder != usual(t.ID) {
		text += " holder=" + s.print(t.Holder)
	}
	if t.Keyed {
		text += " keyed"
	}
	return text
}

// usual is the default metadata of an owner's lock, and the default holder of a ticket.
func usual(of string) string { return of + "'s" }

// reply prints what node.Reply documents for its outcome.
func (s *scale) reply(kind node.OpKind, r node.Reply) string {
	r = meaningful(kind, r)
	text := r.Outcome.String()
	add := func(format string, args ...any) { text += " " + fmt.Sprintf(format, args...) }
	if r.Outcome == node.Failed {
		return text + map[bool]string{false: ", not sent", true: ", perhaps done"}[r.Sent]
	}
	if r.Grant != 0 {
		add("%s", s.printToken(r.Grant))
	}
	if r.Owner != "" {
		add("owner=%s", s.print(r.Owner))
	}
	if r.Remaining != 0 {
		add("left=%s", s.printTime(r.Remaining))
	}
	if r.TTL != 0 {
		add("ttl=%s", exactly(r.TTL))
	}
	if r.Meta != "" {
		add("meta=%s", s.print(r.Meta))
	}
	if r.Existing {
		add("existing")
	}
	if r.Recreated {
		add("recreated")
	}
	if r.Epoch != 0 {
		text += ", own " + s.printEpoch(r.Epoch)
	}
	if r.Waiting != 0 {
		add("waiting=%d", r.Waiting)
	}
	for i, t := range r.Queue {
		add("%s%s", map[bool]string{true: "queue: ", false: "| "}[i == 0], s.printTicket(t))
	}
	return text
}

// meaningful keeps the fields that node.Reply documents for the outcome.
func meaningful(kind node.OpKind, r node.Reply) node.Reply {
	m := node.Reply{Outcome: r.Outcome}
	switch r.Outcome {
	case node.Failed:
		m.Sent = r.Sent
	case node.StaleEpoch, node.NotAdmitted:
		m.Epoch = r.Epoch
	case node.Granted, node.Held:
		m = r
		if kind == node.OpConfirm || kind == node.OpRelease {
			m.Meta = ""
		}
	}
	if kind == node.OpRead {
		m.Waiting, m.Queue = r.Waiting, r.Queue
	}
	m.Err = nil
	return m
}

func (s *scale) marks(m node.Marks) string {
	text := fmt.Sprintf("high-water=%s longest=%s bootstrapped=%s", s.printToken(m.HighWater), exactly(m.MaxTTL), s.printEpoch(m.Bootstrapped))
	if m.Secrets != "" {
		text += " secrets=" + secretName(m.Secrets)
	}
	if m.Map != (node.Map{}) {
		text += fmt.Sprintf(" map=%s since=%s floor=%s generation=%d", quoted(m.Map.Name), s.printEpoch(m.Map.Epoch), s.printToken(m.Map.Floor), m.Map.Generation)
	}
	return text
}

// carried prints a lock of a survey.
func (s *scale) carried(l node.CarriedLock) string {
	text := fmt.Sprintf("%s %s owner=%s ttl=%s", s.print(l.Resource), s.printToken(l.Grant), quoted(l.Owner), exactly(l.TTL))
	if l.Meta != "" {
		text += " meta=" + s.print(l.Meta)
	}
	if l.Keyed {
		text += " keyed"
	}
	return text
}

// secret returns a cluster's secrets by a one-digit name, or "stored": the fixtures' secrets.
func secret(name string) node.Secrets {
	if name == "stored" {
		return node.NewSecrets(1000, [node.MinSecretBytes]byte{1, 2, 3})
	}
	n := name[0] - '0'
	return node.NewSecrets(node.Epoch(n), [node.MinSecretBytes]byte{n})
}

func secretName(of node.Secrets) string {
	for _, name := range []string{"7", "8", "stored"} {
		if secret(name) == of {
			return name
		}
	}
	return "unknown"
}
