package redlock

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// meta is the public part of a lock, kept on the nodes beside it.
type meta struct {
	acquired time.Time // the granting server's wall clock; zero if unknown
	holder   string
	metadata json.RawMessage
}

// metaSeparator cannot occur in a holder label, which has no control characters.
const metaSeparator = "\x1f"

func (m meta) String() string {
	var digits [16]byte
	return string(strconv.AppendInt(digits[:0], m.acquired.UnixMilli(), 36)) + metaSeparator + m.holder + metaSeparator + string(m.metadata)
}

// parseMeta reads what String wrote. Any other text is unknown, as is the empty one
// of a lock that an extend made again (rule 5): meta is for display only.
func parseMeta(text string) (m meta) {
	millis, rest, ok := strings.Cut(text, metaSeparator)
	if !ok {
		return meta{}
	}
	if ms, err := strconv.ParseInt(millis, 36, 64); err == nil {
		m.acquired = time.UnixMilli(ms)
	}
	holder, rest, _ := strings.Cut(rest, metaSeparator)
	metadata, _, _ := strings.Cut(rest, metaSeparator) // a later version may add parts; JSON has no such character
	m.holder = holder
	if json.Valid([]byte(metadata)) {
		m.metadata = json.RawMessage(metadata)
	}
	return m
}
