package chaos

import (
	"encoding/json"
	"errors"
	"hash/fnv"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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
	opCancel  = "cancel"
	opDied    = "died" // not a request: the client dies without releasing, and sends nothing more for the label
)

// op is one request as its client saw it. Times are since the stand's start.
type op struct {
	Client   int           `json:"client"`
	Kind     string        `json:"kind"`
	Server   int           `json:"server"`
	Resource string        `json:"resource"` // for several resources, the first
	Label    string        `json:"label,omitempty"`
	Names    []string      `json:"names,omitempty"`   // acquire, cancel: all resources that may be taken
	Several  bool          `json:"several,omitempty"` // acquire: all of them at once
	Sent     time.Duration `json:"sent"`
	Done     time.Duration `json:"done"`
	Status   int           `json:"status"`         // 0: no response, or a lost one
	Wait     time.Duration `json:"wait,omitempty"` // acquire: the requested wait
	Poll     bool          `json:"poll,omitempty"`
	TTL      time.Duration `json:"ttl,omitempty"` // acquire, extend: the requested TTL
	MinHold  time.Duration `json:"min_hold,omitempty"`
	TakenFor time.Duration `json:"taken_for,omitempty"` // release: how long the resource stays locked afterwards
	Key      string        `json:"key,omitempty"`
	Lease    string        `json:"lease,omitempty"`
	Token    int64         `json:"token,omitempty"`
	Parts    []leased      `json:"parts,omitempty"`    // of the lease; the first is Resource and Token
	Validity time.Duration `json:"validity,omitempty"` // granted, counted from Sent
	Highest  int64         `json:"highest,omitempty"`  // the highest token in a 412 response
	ID       string        `json:"id,omitempty"`       // put: the id of the write
	Value    content       `json:"value,omitzero"`     // put: written; claim: read

	lost bool // the response is lost on its way
}

// leased is a resource of a lease, and its token.
type leased struct {
	Resource string `json:"resource"`
	Token    int64  `json:"token"`
}

// until is when the granted lease ends, by its holder's count.
func (o *op) until() time.Duration { return o.Sent + o.Validity }

// again returns a further operation under the same lease.
func (o *op) again() *op {
	return &op{
		Client: o.Client, Server: o.Server, Resource: o.Resource, Label: o.Label, Names: o.Names,
		Lease: o.Lease, Token: o.Token, Parts: o.Parts, Key: o.Key,
	}
}

// newer reports that a part of its lease has a larger token than in the other lease of the same key.
func (o *op) newer(than *op) bool {
	for i, p := range o.Parts {
		if i >= len(than.Parts) || p.Token > than.Parts[i].Token {
			return true
		}
	}
	return false
}

// twins reports that two requests with one key were under way at the same time. Then the lease with the
// smaller tokens may end early, as GUARANTEES says, even if the other request got no response.
func twins(ops []*op, key string) bool {
	var tries []*op
	for _, o := range ops {
		if o.Kind == opAcquire && o.Key == key && key != "" {
			tries = append(tries, o)
		}
	}
	for i, o := range tries {
		differs := func(p *op) bool { return !o.ok() || !p.ok() || o.newer(p) || p.newer(o) }
		if slices.ContainsFunc(tries[i+1:], func(p *op) bool { return p.Sent < o.Done && o.Sent < p.Done && differs(p) }) {
			return true
		}
	}
	return false
}

// each returns one operation for each resource of the request: those of the lease, or those that it requests.
func (o *op) each() (ops []*op) {
	parts := o.Parts
	if o.Kind == opClaim || o.Kind == opPut {
		parts = nil
	}
	if len(parts) == 0 && len(o.Names) > 1 && o.Kind != opClaim && o.Kind != opPut {
		for _, name := range o.Names {
			parts = append(parts, leased{Resource: name})
		}
	}
	for _, p := range parts {
		one := *o
		one.Resource, one.Token = p.Resource, p.Token
		ops = append(ops, &one)
	}
	if len(ops) == 0 {
		ops = []*op{o}
	}
	return ops
}

// ok reports a success response.
func (o *op) ok() bool { return o.Status >= 200 && o.Status < 300 }

// open reports that the operation may have taken effect, or may still do so.
func (o *op) open() bool { return o.Status == 0 || o.Status >= 500 }

// stale reports that the guard refused the token.
func (o *op) stale() bool { return o.Status == http.StatusPreconditionFailed }

// content represents the value of a record: the ids of all writes in order, separated by spaces. Contents with
// the same length and sum count as equal.
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

// byResource groups the operations by resource, in the order of their responses.
func (h *history) byResource() map[string][]*op {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string][]*op{}
	for _, o := range h.ops {
		for _, one := range o.each() {
			all[one.Resource] = append(all[one.Resource], one)
		}
	}
	return all
}

// about returns the operations on a resource, or that may turn out to be on it.
func (h *history) about(resource string) (ops []*op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.ops {
		if o.Resource == resource || slices.Contains(o.Names, resource) {
			ops = append(ops, o)
		}
	}
	return ops
}

// save writes the history to a file, one JSON object per line.
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
