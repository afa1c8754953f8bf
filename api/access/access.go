// Package access authenticates callers and says what each may do: names, their
// credentials (bearer token, certificate, JWT), rules and limits, from one file that
// is read again when it changes. docs/reference/access.md describes the file.
//
// What no rule allows is denied. Of several rules that fit a resource the one with
// the longest prefix counts, whether it gives more or less than others.
//
// Bearer tokens are kept as SHA-256 only. That is enough for secrets with 128
// random bits or more, which cannot be guessed or listed in a table; it would
// not be for passwords.
package access

import (
	"errors"
	"iter"
	"strings"
	"time"
)

// Right is what a rule gives. Each contains the ones before it.
type Right uint8

// The rights.
const (
	None    Right = iota
	Read          // see locks, queues, records and their history
	Acquire       // take, extend and release leases; claim and write records
	Admin         // break locks of others
)

var rightNames = [...]string{None: "none", Read: "read", Acquire: "acquire", Admin: "admin"}

func (r Right) String() string { return rightNames[r] }

// Why a caller is not authenticated.
var (
	// ErrNoCredentials: the request has no credentials.
	ErrNoCredentials = errors.New("the request has no credentials")
	// ErrBadCredentials: the credentials are unknown here, malformed, or have expired.
	ErrBadCredentials = errors.New("the credentials are unknown here, or have expired")
	// ErrUnavailable: the keys of a JWT's issuer could not be fetched. Safe to retry.
	ErrUnavailable = errors.New("the issuer of the token does not respond, so the server cannot check the signature")
)

// Identity is an authenticated caller. It is never changed: a file that is read again
// makes new ones, which share only the counts of a name.
type Identity struct {
	name   string
	rules  []rule // the longest prefix first
	limits limits
	usage  *usage
	keeper *Keeper // whose file names it
}

type rule struct {
	prefix string
	right  Right
}

// Name is the caller's name in the file; it is fit for a log.
func (i *Identity) Name() string { return i.name }

// Now is the same name in the file's latest version; nil if it has none.
func (i *Identity) Now() *Identity { return i.keeper.policy.Load().names[i.name] }

// Rules are the caller's: a prefix and the right over the resources that begin with it,
// the longest prefix first. The first that fits a resource decides.
func (i *Identity) Rules() iter.Seq2[string, Right] {
	return func(yield func(string, Right) bool) {
		for _, r := range i.rules {
			if !yield(r.prefix, r.right) {
				return
			}
		}
	}
}

// May says whether the caller has the right over the resource; nil has none.
func (i *Identity) May(right Right, resource string) bool {
	if i == nil {
		return false
	}
	for _, r := range i.rules {
		if strings.HasPrefix(resource, r.prefix) {
			return r.right >= right
		}
	}
	return false
}

// MayAll says whether the caller has the right over every resource.
func (i *Identity) MayAll(right Right) bool {
	if i == nil {
		return false
	}
	everything := false
	for _, r := range i.rules {
		if r.right < right {
			return false
		}
		everything = everything || r.prefix == ""
	}
	return everything
}

// The limits of a caller that may be reached.
var (
	ErrRequestLimit = errors.New("the caller's limit of requests a second is reached")
	ErrWaiterLimit  = errors.New("the caller's limit of requests in the queue is reached")
	ErrRecordLimit  = errors.New("the caller's limit of guarded records, or of their bytes, is reached")
	ErrLeaseLimit   = errors.New("the caller's limit of leases held is reached")
)

// LimitError is one of these, with what is allowed.
type LimitError struct {
	Limit error
	Max   float64
	Retry time.Duration // when it may be worth trying again, at the earliest
}

func (e *LimitError) Error() string { return e.Limit.Error() }

// Is makes errors.Is(err, e.Limit) true.
func (e *LimitError) Is(target error) bool { return target == e.Limit }
