package chaos

import (
	"encoding/json"
	"errors"
	"hash/fnv"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// The kinds of operations.
const (
	opAcquire = "acquire"
	opExtend  = "extend"
	opRelease = "release"
	opClaim   = "claim" // read a record with a token
	opPut     = "put"
)

// op is one request as its client saw it. Times are since the stand's start.
type op struct {
	Client   int           `json:"client"`
	Kind     string        `json:"kind"`
	Server   int           `json:"server"`
	Resource string        `json:"resource"`
	Sent     time.Duration `json:"sent"`
	Done     time.Duration `json:"done"`
	Status   int           `json:"status"`         // 0: no answer, or an answer lost
	Wait     time.Duration `json:"wait,omitempty"` // acquire: asked for
	Key      string        `json:"key,omitempty"`
	Lease    string        `json:"lease,omitempty"`
	Token    int64         `json:"token,omitempty"`
	Validity time.Duration `json:"validity,omitempty"` // granted, counted from Sent
	Highest  int64         `json:"highest,omitempty"`  // what a 412 named
	ID       string        `json:"id,omitempty"`       // put: the write's own
	Value    content       `json:"value,omitzero"`     // put: written; claim: read
}

// ok: it was answered, and did what was asked for.
func (o *op) ok() bool { return o.Status >= 200 && o.Status < 300 }

// open: it may have taken effect, or may yet.
func (o *op) open() bool { return o.Status == 0 || o.Status >= 500 }

// stale: the guard refused the token.
func (o *op) stale() bool { return o.Status == http.StatusPreconditionFailed }

// content stands for the value of a record: the ids of all writes in order,
// with spaces between. Two of the same length and sum are the same.
type content struct {
	Writes int    `json:"writes"`
	Sum    uint64 `json:"sum"`
}

func contentOf(value string) content {
	if value == "" {
		return content{}
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(value))
	return content{Writes: strings.Count(value, " ") + 1, Sum: sum.Sum64()}
}

// history collects the operations of one round.
type history struct {
	mu  sync.Mutex
	ops []*op
}

func (h *history) add(o *op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// byResource sorts the operations by resource, in the order of their answers.
func (h *history) byResource() map[string][]*op {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string][]*op{}
	for _, o := range h.ops {
		all[o.Resource] = append(all[o.Resource], o)
	}
	return all
}

// save writes the history to a file, a JSON object a line.
func (h *history) save(dir, name string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	path = filepath.Join(dir, name)
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h.mu.Lock()
	defer h.mu.Unlock()
	out := json.NewEncoder(f)
	for _, o := range h.ops {
		if err := out.Encode(o); err != nil {
			return path, err
		}
	}
	return path, nil
}
