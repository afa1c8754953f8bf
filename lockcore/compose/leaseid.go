package compose

import (
	"context"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
)

// Open implements lockcore.Service. It returns ErrNotHeld for an id that this cluster did not seal for this
// caller: such a lease never existed. It queries the nodes only for their secrets, and only if it does not
// know the id's key.
func (s *Service) Open(ctx context.Context, caller lockcore.Caller, leaseID string) (lockcore.OpenedLease, error) {
	if !caller.Valid() {
		return nil, lockcore.ErrNoCaller
	}
	parts, err := s.partsOf(ctx, caller.Name(), leaseID)
	if err != nil {
		return nil, err
	}
	return &opened{Service: s, id: leaseID, parts: parts}, nil
}

// partsOf returns the parts of the lease id. Errors: as for Open.
func (s *Service) partsOf(ctx context.Context, caller, text string) ([]keyring.LeaseID, error) {
	sealed, ok := keyring.Decode(text)
	if !ok {
		return nil, lockcore.ErrNotHeld
	}
	parts, known := s.open(caller, sealed)
	if !known { // the nodes may have a new key (rule 24)
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

// open opens a lease id with every ring. It reports whether the id's key is known. parts is nil if that key
// did not seal the id for this caller.
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

// SealMessage encrypts a message to the other servers of the cluster, so that only they can read it or make
// one. It does not protect against old or repeated messages. It returns false while the server does not know
// the cluster's secret.
func (s *Service) SealMessage(text string) (sealed string, ok bool) {
	rings := s.resources.Rings()
	if len(rings) == 0 {
		return "", false
	}
	return rings[0].SealMessage(text), true
}

// OpenMessage decrypts a message of SealMessage. It returns false for any other text, and for a secret that
// this server does not know.
func (s *Service) OpenMessage(sealed string) (text string, ok bool) {
	for _, ring := range s.resources.Rings() {
		if text, ok = ring.OpenMessage(sealed); ok {
			return text, true
		}
	}
	return "", false
}
