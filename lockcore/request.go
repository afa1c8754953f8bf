package lockcore

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of requests.
const (
	MinTTL            = 100 * time.Millisecond
	MaxWait           = 10 * time.Minute
	longestHold       = 10 * 365 * 24 * time.Hour // of MaxHold: ten years are practically unlimited
	MaxResourceBytes  = 256
	MaxHolderBytes    = MaxResourceBytes
	MaxMetadataBytes  = 4096
	maxIdempotencyKey = 1024 // bytes, including the caller's identity
)

// Bounds of a lease of several resources.
const (
	MinBundle = 2
	MaxBundle = 16
)

// Caller is the party for which a call of the Service is made. A lease id is sealed for its caller: to any
// other caller the lease has ended (ErrNotHeld). No server keeps a table for this, and nodes do not know
// callers. The zero Caller is invalid, and calls with it are refused (ErrNoCaller), so that a forgotten caller
// never becomes the wrong one.
type Caller struct {
	name     string
	everyone bool
}

// Everyone is the only caller of a server without access control.
var Everyone = Caller{everyone: true}

// CallerNamed returns the caller with this name in access control; the zero Caller for "".
func CallerNamed(name string) Caller { return Caller{name: name} }

// Name returns the caller's name; "" for Everyone.
func (c Caller) Name() string { return c.name }

// Valid reports whether the caller is set.
func (c Caller) Valid() bool { return c != Caller{} }

// Request is a request for a lease. The decoder fills in the first part. Limits.Check then refuses it, or
// completes it, once. After that it is passed to the nodes' quorum unchanged, or in parts (Part, Slot).
type Request struct {
	Caller   Caller        // the caller that gets the lease
	Resource string        // 1 to 256 bytes of UTF-8 without control characters
	TTL      time.Duration // MinTTL to Config.MaxTTL; 0 means Config.DefaultTTL
	Wait     time.Duration // 0 tries once; at most MaxWait
	// Poll ends the call with ErrWaitTimeout while the request still waits; 0 means not before Wait ends. With
	// an IdempotencyKey, the place in the queue and the resources taken so far are kept for two seconds for
	// the next request.
	Poll   time.Duration
	Holder string // a label, at most 256 bytes; public
	// MinHold keeps the resource locked for that long from the grant, even if the lease is released earlier;
	// at most TTL. If the holder dies, the resource is free after the TTL.
	MinHold time.Duration
	// MaxHold bounds how long extensions may keep the lease, from the grant: at least TTL, and at most the
	// service's own limit. 0 uses the service's limit.
	MaxHold  time.Duration
	Metadata json.RawMessage // any JSON value, at most 4096 bytes; public
	// IdempotencyKey makes a repeated request find its own live lease. The repetition may differ only in Wait
	// and Poll. The same key of two callers means two leases.
	IdempotencyKey string
	// Slots requests one of this many slots of Resource, 1 to MaxSlots. Each slot has a lock of its own, and
	// the lease is of the resource that SlotName names. 0 means no slots.
	Slots int
	// Resources requests several resources instead of Resource, all or none: MinBundle to MaxBundle of them.
	// Check sorts them.
	Resources []string

	// Began is when Check accepted the request; zero before.
	Began time.Time
	// Scope is what the idempotency key is used for: the resources of the whole request, and its terms; ""
	// without a key. A request with another scope does not get the key's lease.
	Scope string
	// IsSlot means that Resource is one of several slots that the request may get. Only Slot sets it.
	IsSlot bool
	// terms are the request's parameters except its resources and its wait, which a repetition shortens; ""
	// without an idempotency key. They are taken from the request as it was sent, because servers may have
	// different defaults.
	terms string
}

// Polls reports whether the call ends before the request's wait does.
func (r *Request) Polls() bool { return r.Poll > 0 && r.Poll < r.Wait }

// AnswerWithin is how long this call may wait.
func (r *Request) AnswerWithin() time.Duration {
	if r.Polls() {
		return r.Poll
	}
	return r.Wait
}

// Part returns the request for only the i-th of its Resources. Under an idempotency key, each part has a key
// of its own.
func (r *Request) Part(i int) Request {
	one := *r
	one.Resource, one.Resources = r.Resources[i], nil
	if i > 0 && r.IdempotencyKey != "" {
		one.IdempotencyKey += "\n" + one.Resource
	}
	return one
}

// Slot returns the request for only the slot of that name (SlotNames).
func (r *Request) Slot(name string) Request {
	one := *r
	one.Resource, one.Scope, one.Slots, one.IsSlot = name, r.scopeOf(name), 0, true
	return one
}

// scopeOf is the Scope of a request for these resources; "" without an idempotency key. The separator is a
// control character, which names cannot contain.
func (r *Request) scopeOf(resources ...string) string {
	if r.IdempotencyKey == "" {
		return ""
	}
	return strings.Join(resources, "\n") + "\x1f" + r.terms
}

// termsOf returns the terms of a request as it was sent.
func termsOf(r *Request) string {
	if r.IdempotencyKey == "" {
		return ""
	}
	text := make([]byte, 0, 128)
	for _, n := range []int64{int64(r.Slots), r.TTL.Milliseconds(), r.MinHold.Milliseconds(), r.MaxHold.Milliseconds()} {
		text = append(strconv.AppendInt(text, n, 10), ' ')
	}
	text = append(append(strconv.AppendQuote(text, r.Holder), ' '), r.Metadata...)
	sum := sha256.Sum256(text)
	const termsBytes = 9 // short is enough: a caller gains nothing if two of its own requests collide
	return base64.RawURLEncoding.EncodeToString(sum[:termsBytes])
}

// Limits are the bounds of a request. The zero value of a field takes its default.
type Limits struct {
	DefaultTTL time.Duration // of a request without a TTL; default 30s, at most MaxTTL
	MinTTL     time.Duration // the shortest TTL of a request; default MinTTL
	MaxTTL     time.Duration // the longest TTL of a request; default 60s
}

// WithDefaults fills in the defaults.
func (l Limits) WithDefaults() Limits {
	l.MinTTL = cmp.Or(l.MinTTL, MinTTL)
	l.MaxTTL = cmp.Or(l.MaxTTL, 60*time.Second)
	l.DefaultTTL = cmp.Or(l.DefaultTTL, min(30*time.Second, l.MaxTTL))
	return l
}

// Validate refuses limits that contradict each other.
func (l Limits) Validate() error {
	switch {
	case l.MinTTL < MinTTL:
		return fmt.Errorf("MinTTL is %s: at least %s", l.MinTTL, MinTTL)
	case l.MaxTTL < l.MinTTL:
		return fmt.Errorf("MaxTTL is %s: at least %s", l.MaxTTL, l.MinTTL)
	case l.DefaultTTL < l.MinTTL || l.DefaultTTL > l.MaxTTL:
		return fmt.Errorf("DefaultTTL is %s: %s to MaxTTL (%s)", l.DefaultTTL, l.MinTTL, l.MaxTTL)
	}
	return nil
}

// CheckTTL replaces 0 by the default and refuses a TTL out of bounds. The error is a *FieldError.
func (l Limits) CheckTTL(ttl time.Duration) (time.Duration, error) {
	if ttl == 0 {
		return l.DefaultTTL, nil
	}
	if ttl < l.MinTTL || ttl > l.MaxTTL {
		reason := fmt.Sprintf("must be a whole number from %d to %d", l.MinTTL.Milliseconds(), l.MaxTTL.Milliseconds())
		if l.MinTTL > MinTTL && ttl < l.MinTTL {
			reason += ": the store that keeps the locks may take longer than a shorter lease lasts"
		}
		return 0, &FieldError{Field: "ttl_ms", Reason: reason}
	}
	return ttl.Truncate(time.Millisecond), nil
}

// Check refuses a request that is out of bounds. Otherwise it completes the request: it sets the TTL, sorts
// the resources, and sets the scope and the beginning of the wait. It does not change a request that was
// checked before. The error is ErrNoCaller, or has a *FieldError for each field.
func (l Limits) Check(req *Request) error {
	if !req.Began.IsZero() {
		return nil
	}
	if !req.Caller.Valid() {
		return ErrNoCaller
	}
	req.terms = termsOf(req)
	if err := l.checkBounds(req); err != nil {
		return err
	}
	if req.Resources == nil {
		req.Scope = req.scopeOf(req.Resource)
	} else {
		req.Scope = req.scopeOf(req.Resources...)
	}
	req.Began = time.Now()
	return nil
}

func (l Limits) checkBounds(req *Request) (err error) {
	if req.TTL, err = l.CheckTTL(req.TTL); err != nil {
		return err
	}
	if req.MinHold < 0 || req.MinHold > req.TTL {
		return &FieldError{Field: "min_hold_ms", Reason: fmt.Sprintf("must be 0 to the TTL (%d)", req.TTL.Milliseconds())}
	}
	if req.MaxHold < 0 || req.MaxHold > 0 && req.MaxHold < req.TTL {
		return &FieldError{Field: "max_hold_ms", Reason: fmt.Sprintf("must be 0 for no bound, or at least the TTL (%d)", req.TTL.Milliseconds())}
	}
	if req.MaxHold > longestHold {
		return &FieldError{Field: "max_hold_ms", Reason: fmt.Sprintf("must be at most %d", longestHold.Milliseconds())}
	}
	if req.Wait < 0 || req.Wait > MaxWait {
		err = &FieldError{Field: "wait_ms", Reason: fmt.Sprintf("must be a whole number from 0 to %d", MaxWait.Milliseconds())}
	}
	if len(req.Metadata) > MaxMetadataBytes {
		err = &FieldError{Field: "metadata", Reason: fmt.Sprintf("must be at most %d bytes long", MaxMetadataBytes)}
	}
	if len(req.IdempotencyKey) > maxIdempotencyKey {
		err = &FieldError{Field: "Idempotency-Key", Reason: "is too long"}
	}
	named := errors.Join(ValidateResource(req.Resource), validateSlots(req.Resource, req.Slots))
	if req.Resources != nil {
		named = checkResources(req)
	}
	return errors.Join(named, ValidateText("holder", req.Holder, 0), err)
}

// checkResources sorts the resources and refuses an invalid list.
func checkResources(req *Request) error {
	if req.Resource != "" {
		return &FieldError{Field: "resources", Reason: "must not be given together with resource"}
	}
	if req.Slots != 0 {
		return &FieldError{Field: "slots", Reason: "must not be given together with resources"}
	}
	if n := len(req.Resources); n < MinBundle || n > MaxBundle {
		return &FieldError{Field: "resources", Reason: fmt.Sprintf("must name %d to %d resources", MinBundle, MaxBundle)}
	}
	req.Resources = slices.Clone(req.Resources)
	slices.Sort(req.Resources)
	for i, resource := range req.Resources {
		if err := ValidateText("resources", resource, 1); err != nil {
			return err
		}
		if i > 0 && resource == req.Resources[i-1] {
			return &FieldError{Field: "resources", Reason: "must not name a resource twice"}
		}
	}
	return nil
}

// ValidateResource checks a resource's name. The error is a *FieldError.
func ValidateResource(resource string) error {
	return ValidateText("resource", resource, 1)
}

// ValidateText checks a text of minBytes to MaxResourceBytes: valid UTF-8 without
// control characters. The error is a *FieldError.
func ValidateText(field, text string, minBytes int) error {
	switch {
	case len(text) < minBytes || len(text) > MaxResourceBytes:
		return &FieldError{Field: field, Reason: fmt.Sprintf("must be %d to %d bytes long", minBytes, MaxResourceBytes)}
	case !utf8.ValidString(text):
		return &FieldError{Field: field, Reason: "must be valid UTF-8"}
	case strings.IndexFunc(text, unicode.IsControl) >= 0:
		return &FieldError{Field: field, Reason: "must not contain control characters"}
	}
	return nil
}

// MaxSlots bounds the slots of a resource.
const MaxSlots = 32

// slotMark separates a resource from the number of its slot.
const slotMark = "#slot"

// SlotName names a slot of a resource. A slot is a resource like any other, with a lock,
// a queue and tokens of its own.
func SlotName(resource string, slot int) string { return resource + slotMark + strconv.Itoa(slot) }

// SlotOf returns the resource and the number in a slot's name; 0 if the name is not a slot's.
func SlotOf(name string) (resource string, slot int) {
	resource, number, marked := strings.Cut(name, slotMark)
	if !marked { // nearly always, and parsing an empty number would allocate its error
		return name, 0
	}
	if n, err := strconv.Atoi(number); err == nil && n >= 1 && n <= MaxSlots && resource != "" && SlotName(resource, n) == name {
		return resource, n
	}
	return name, 0
}

// SlotNames names the first n slots of a resource.
func SlotNames(resource string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = SlotName(resource, i+1)
	}
	return names
}

// validateSlots checks the number of slots that a request for a resource names; 0 means no slots. The error is
// a *FieldError.
func validateSlots(resource string, slots int) error {
	switch {
	case slots < 0 || slots > MaxSlots:
		return &FieldError{Field: "slots", Reason: fmt.Sprintf("must be a whole number from 1 to %d", MaxSlots)}
	case slots == 0:
		return nil
	case strings.Contains(resource, slotMark):
		return &FieldError{Field: "slots", Reason: fmt.Sprintf("must not be given for a resource with %q in its name", slotMark)}
	case len(SlotName(resource, slots)) > MaxResourceBytes:
		return &FieldError{Field: "resource", Reason: fmt.Sprintf("must be at most %d bytes long, with the number of the slot", MaxResourceBytes)}
	}
	return nil
}
