package lockcore

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
)

type ownerKey struct{}

// WithOwner says on whose behalf the calls under ctx are made. A lease that is
// acquired under an owner answers to this owner alone: to anybody else its id is
// one of a lease that has ended (ErrNotHeld). The empty owner is none.
//
// No server keeps a table for that, and the nodes know no owners. The secret in
// a lease id is half random, half a check of its owner, which refuses an id in
// other hands at once. What the nodes hold is made of secret and owner by a
// one-way function, so that an id whose check was made anew is of no lease.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

// OwnerOf gives what WithOwner said, "" for nothing.
func OwnerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}

// Of the secret's 20 bytes so many are random, and the others are the check.
const ownedSecretBytes = 16

// givenTo makes the id of a new lease one of the owner's, if there is an owner.
func (id leaseID) givenTo(owner string) leaseID {
	if owner == "" {
		return id
	}
	var secret [leaseSecretBytes]byte
	if _, err := base64.RawURLEncoding.Decode(secret[:], []byte(id.value)); err != nil {
		panic("lockcore: ownership value is not one that newLeaseValue or derivedLeaseValue made")
	}
	check := ownerSum("check", secret[:ownedSecretBytes], owner)
	copy(secret[ownedSecretBytes:], check[:])
	return id.hiddenBehind(secret, owner)
}

// ownedBy opens an id for the owner, if there is one. It reports false for an
// id that was given to somebody else.
func (id leaseID) ownedBy(owner string) (leaseID, bool) {
	if owner == "" {
		return id, true
	}
	var secret [leaseSecretBytes]byte
	if _, err := base64.RawURLEncoding.Decode(secret[:], []byte(id.value)); err != nil {
		return leaseID{}, false
	}
	check := ownerSum("check", secret[:ownedSecretBytes], owner)
	if !hmac.Equal(check[:leaseSecretBytes-ownedSecretBytes], secret[ownedSecretBytes:]) {
		return leaseID{}, false
	}
	return id.hiddenBehind(secret, owner), true
}

// hiddenBehind is the id whose text holds the secret.
func (id leaseID) hiddenBehind(secret [leaseSecretBytes]byte, owner string) leaseID {
	value := ownerSum("value", secret[:], owner)
	id.secret = base64.RawURLEncoding.EncodeToString(secret[:])
	id.value = base64.RawURLEncoding.EncodeToString(value[:leaseSecretBytes])
	return id
}

func ownerSum(use string, secret []byte, owner string) [sha256.Size]byte {
	text := make([]byte, 0, 128) // stays on the stack
	text = append(text, "fencelock lease owner v1 "...)
	text = append(text, use...)
	text = append(text, secret...) // of one length for one use
	text = append(text, owner...)
	return sha256.Sum256(text)
}

// openLease opens a lease id for the owner of ctx. Errors: ErrMalformedLeaseID,
// ErrNotHeld (the id is somebody else's).
func openLease(ctx context.Context, text string) ([]leaseID, error) {
	parts, err := parseLease(text)
	if err != nil {
		return nil, err
	}
	owner := OwnerOf(ctx)
	for i := range parts {
		own, ok := parts[i].ownedBy(owner)
		if !ok {
			return nil, ErrNotHeld
		}
		parts[i] = own
	}
	return parts, nil
}

// LeaseResources tells what a lease id says that it is of; whether there is, or
// ever was, such a lease is another question. Errors: ErrMalformedLeaseID,
// ErrNotHeld (the id is not the owner's of ctx).
func LeaseResources(ctx context.Context, lease string) ([]string, error) {
	parts, err := openLease(ctx, lease)
	if err != nil {
		return nil, err
	}
	resources := make([]string, len(parts))
	for i := range parts {
		resources[i] = parts[i].resource
	}
	return resources, nil
}
