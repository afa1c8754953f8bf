package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/console"
)

// story is what the demonstration shows: its steps in order, and the words for them. The console plays the
// same story with threads of its page, and draws it from the same words.
type story struct {
	Title    string              `json:"title"`
	Opening  int64               `json:"opening"` // the balance at the beginning
	Deposits map[Actor]int64     `json:"deposits"`
	Rounds   []Telling           `json:"rounds"`
	Says     map[string]string   `json:"says"`   // by kind of event, and by kind and "guarded"
	Labels   map[string][]string `json:"labels"` // what a drawing says, the longest text first
}

// Telling is what the story tells of a round before it is played.
type Telling struct {
	Title   string `json:"title"`
	Storage string `json:"storage"` // where the account is stored
	Guarded bool   `json:"guarded"` // the storage is a guarded record, not a file
	Want    int64  `json:"want"`    // the correct balance at the end
	Good    string `json:"good"`    // the verdict of a round that went as expected
	Because string `json:"because"` // its reason
	Bad     string `json:"bad"`     // the verdict of any other round
	Steps   []step `json:"steps"`
}

// step is an event that a round is expected to have.
type step struct {
	Who   Actor
	Kind  Kind
	Maybe bool // B finds the lock held only if it asks before A's lease has expired
}

func (s *step) UnmarshalText(text []byte) error {
	who, kind, found := strings.Cut(string(text), " ")
	if !found {
		return fmt.Errorf("a step is %q", text)
	}
	kind, maybe := strings.CutSuffix(kind, "?")
	*s = step{Who: Actor(who), Kind: Kind(kind), Maybe: maybe}
	return nil
}

// told reads the story.
var told = sync.OnceValue(func() (s story) {
	file := console.Files()["race-story.js"].Body
	if err := json.Unmarshal(file[bytes.IndexByte(file, '{'):bytes.LastIndexByte(file, '}')+1], &s); err != nil {
		panic("demo: race-story.js: " + err.Error())
	}
	return s
})

// fill puts values into a text: {name} becomes the value that follows the name.
func fill(text string, values ...any) string {
	for pair := range slices.Chunk(values, 2) {
		text = strings.ReplaceAll(text, fmt.Sprintf("{%s}", pair[0]), fmt.Sprint(pair[1]))
	}
	return text
}

// sum writes the opening balance and the deposits as a sum, and calculates it.
func (s story) sum() (text string, all int64) {
	a, b := s.Deposits[WorkerA], s.Deposits[WorkerB]
	return fmt.Sprintf("%d + A's %d + B's %d", s.Opening, a, b), s.Opening + a + b
}

// Sentence describes the event.
func (e Event) Sentence() string {
	text, known := told().Says[string(e.Kind)+" guarded"]
	if !known || e.Token == 0 {
		text = told().Says[string(e.Kind)]
	}
	return fill(text, "pid", e.PID, "other", other[e.Who], "left", seconds(e.Left), "token", e.Token,
		"short", short(e.Token), "highest", short(e.Highest), "balance", e.Balance)
}

// seconds writes a duration the way people say it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// short abbreviates a token. The tokens of a new cluster begin at the time in microseconds, so the tokens
// of one run differ only in the last digits.
func short(token int64) string {
	if token < 100_000 {
		return strconv.FormatInt(token, 10)
	}
	return fmt.Sprintf("…%03d", token%1000)
}
