package compose

import (
	"context"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
)

// openLease opens a lease id for the caller of ctx. It returns ErrNotHeld for an id
// that this cluster did not seal for this caller: there never was such a lease. It
// returns a *QuorumError while this server knows too little of the nodes to decide.
func (s *Service) openLease(ctx context.Context, text string) ([]keyring.LeaseID, error) {
	sealed, ok := keyring.Decode(text)
	if !ok {
		return nil, lockcore.ErrNotHeld
	}
	caller := lockcore.CallerOf(ctx)
	parts, known := s.open(caller, sealed)
	if !known { // the nodes may have got the key a moment ago (rule 24)
		err := s.resources.ReadRings(ctx)
		if parts, known = s.open(caller, sealed); !known && err != nil {
			return nil, err
		}
	}
	if parts == nil {
		return nil, lockcore.ErrNotHeld
	}
	return parts, nil
}

// open opens a lease id with every ring. It reports whether its key is known; parts is nil if
// that key did not seal the id for this caller.
func (s *Service) open(caller string, sealed keyring.Sealed) (parts []keyring.LeaseID, known bool) {
	for _, ring := range s.resources.Rings() {
		parts, found := ring.OpenLease(caller, sealed)
		if parts != nil {
			return parts, true
		}
		known = known || found
	}
	return nil, known
}

// ReadLeaseID is lockcore.Service's. It asks the nodes only for their secrets, and only if
// the id's is not known.
func (s *Service) ReadLeaseID(ctx context.Context, lease string) (lockcore.LeaseTerms, error) {
	parts, err := s.openLease(ctx, lease)
	if err != nil {
		return lockcore.LeaseTerms{}, err
	}
	read := lockcore.LeaseTerms{Granted: parts[0].Acquired, MinHold: parts[0].MinHold}
	for i := range parts {
		read.Resources = append(read.Resources, parts[i].Resource)
	}
	return read, nil
}

// SealMessage encrypts what this server sends to the other servers of the cluster, so that
// nobody else reads it or makes one like it; it says nothing of when that was, or how
// often it has come. It reports false while the server does not know the cluster's secret.
func (s *Service) SealMessage(text string) (sealed string, ok bool) {
	rings := s.resources.Rings()
	if len(rings) == 0 {
		return "", false
	}
	return rings[0].SealMessage(text), true
}

// OpenMessage reports false for what SealMessage did not make under a secret that this
// server knows.
func (s *Service) OpenMessage(sealed string) (text string, ok bool) {
	for _, ring := range s.resources.Rings() {
		if text, ok = ring.OpenMessage(sealed); ok {
			return text, true
		}
	}
	return "", false
}
