package compose

import (
	"context"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
)

// Open is lockcore.Service's. It returns ErrNotHeld for an id that this cluster did not seal
// for this caller: there never was such a lease. It asks the nodes only for their secrets,
// and only if the id's is not known.
func (s *Service) Open(ctx context.Context, leaseID string) (lockcore.OpenedLease, error) {
	parts, err := s.partsOf(ctx, leaseID)
	if err != nil {
		return nil, err
	}
	return &opened{Service: s, id: leaseID, parts: parts}, nil
}

// partsOf are the parts of the lease id. Errors: as for Open.
func (s *Service) partsOf(ctx context.Context, text string) ([]keyring.LeaseID, error) {
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
