// Package access decides who calls and what a caller may do: names, how each
// is known (bearer token, certificate, JWT), rules and limits, from one file
// that is read again when it changes. docs/access.md describes the file.
//
// Denied is whatever no rule allows. Of several rules that fit a resource the
// one with the longest prefix counts, whether it gives more or less than others.
//
// Bearer tokens are kept as SHA-256 only. That is enough for secrets with 128
// random bits or more, which nobody can guess and no table can list; it would
// not be for passwords.
package access

import (
	"errors"
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

// Why a caller is not known.
var (
	// ErrNoCredentials: the request brings nothing that tells who sends it.
	ErrNoCredentials = errors.New("the request says nothing of who sends it")
	// ErrBadCredentials: what it brings is not known here, malformed, or has expired.
	ErrBadCredentials = errors.New("the credentials are not known here, or have expired")
	// ErrUnavailable: the issuer of a JWT could not be asked for its keys. Safe to retry.
	ErrUnavailable = errors.New("the issuer of the token does not answer, so its signature cannot be checked")
)

// Identity is who calls. It is never changed: a file that is read again makes
// new ones, and only what is counted of a name goes on.
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

// Now is the same name by the file's latest version; nil if it has gone.
func (i *Identity) Now() *Identity { return i.keeper.policy.Load().names[i.name] }

// May tells whether the caller has the right over the resource. Nobody (nil) has any.
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

// MayAll tells whether the caller has the right over every resource there can be.
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

// Which of a caller's limits is reached.
var (
	ErrRequestLimit = errors.New("the caller's limit of requests a second is reached")
	ErrWaiterLimit  = errors.New("the caller's limit of requests in the queue is reached")
	ErrLeaseLimit   = errors.New("the caller's limit of leases held is reached")
)

// LimitError is one of the three, with what is allowed.
type LimitError struct {
	Limit error
	Max   float64
	Retry time.Duration // when it may be worth trying again, at the earliest
}

func (e *LimitError) Error() string { return e.Limit.Error() }

// Is makes errors.Is(err, e.Limit) true.
func (e *LimitError) Is(target error) bool { return target == e.Limit }
