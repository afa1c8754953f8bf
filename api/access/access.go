// Package access authenticates callers and says what each may do: names, their
// credentials (bearer token, certificate, JWT), rules and limits, from one file that
// is read again when it changes. docs/reference/access.md describes the file.
//
// Without a matching rule, access is denied. If several rules match a resource, the one with the longest
// prefix counts, even if it gives fewer rights than the others.
//
// Bearer tokens are kept only as SHA-256. That is enough for secrets with at least 128 random bits, which
// cannot be guessed or listed in a table. It would not be enough for passwords.
package access

import (
	"errors"
	"iter"
	"strings"
	"time"
)

// Right is a right that a rule gives. Each right contains the previous ones.
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

// The reasons why a caller is not authenticated.
var (
	// ErrNoCredentials: the request has no credentials.
	ErrNoCredentials = errors.New("the request has no credentials")
	// ErrBadCredentials: the credentials are unknown here, malformed, or have expired.
	ErrBadCredentials = errors.New("the credentials are unknown here, or have expired")
	// ErrUnavailable: the keys of a JWT's issuer could not be fetched. Safe to retry.
	ErrUnavailable = errors.New("the issuer of the token does not respond, so the server cannot check the signature")
)

// Identity is an authenticated caller. It is immutable: when the file is read again, new Identities replace
// it, and share only its usage counts.
type Identity struct {
	name   string
	rules  []rule // the longest prefix first
	limits limits
	usage  *usage
	keeper *Keeper // the keeper of the file that names the identity
}

type rule struct {
	prefix string
	right  Right
}

// Name is the caller's name in the file. It is safe to log.
func (i *Identity) Name() string { return i.name }

// Now returns the identity with this name in the file's latest version; nil if there is none.
func (i *Identity) Now() *Identity { return i.keeper.policy.Load().names[i.name] }

// Rules returns the caller's rules: prefixes and the right over the resources that begin with each, the
// longest prefix first. The first matching rule decides.
func (i *Identity) Rules() iter.Seq2[string, Right] {
	return func(yield func(string, Right) bool) {
		for _, r := range i.rules {
			if !yield(r.prefix, r.right) {
				return
			}
		}
	}
}

// May reports whether the caller has the right over the resource; nil has none.
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

// MayAll reports whether the caller has the right over every resource.
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

// The limits that a caller may reach.
var (
	ErrRequestLimit = errors.New("the caller's limit of requests a second is reached")
	ErrWaiterLimit  = errors.New("the caller's limit of requests in the queue is reached")
	ErrRecordLimit  = errors.New("the caller's limit of guarded records, or of their bytes, is reached")
	ErrLeaseLimit   = errors.New("the caller's limit of resources held is reached")
)

// LimitError is one of these limits, with its value.
type LimitError struct {
	Limit error
	Max   float64
	Retry time.Duration // the earliest time at which a retry may succeed
}

func (e *LimitError) Error() string { return e.Limit.Error() }

// Is makes errors.Is(err, e.Limit) true.
func (e *LimitError) Is(target error) bool { return target == e.Limit }
