package fencinggrpc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/fencelock/fencelock/fencing"
)

// The keys of the metadata. The values of a key that ends in -bin may contain any bytes.
const (
	tokenKey    = "fencing-token"
	resourceKey = "fencing-resource-bin"
	proofKey    = "fencing-proof"
)

// maxClaims is the maximum number of resources in the metadata of a call: the maximum of a lease.
const maxClaims = 16

// claims are the resources and tokens of a call: a fencing.Lease that was read from metadata.
type claims []fencing.Claim

// Claims returns a copy.
func (c claims) Claims() []fencing.Claim { return append([]fencing.Claim(nil), c...) }

// outgoing adds the tokens of a lease to the metadata of the calls made with ctx. They replace tokens that
// are there already.
func outgoing(ctx context.Context, lease fencing.Lease, proofs bool) (context.Context, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	for _, key := range []string{tokenKey, resourceKey, proofKey} {
		md.Delete(key)
	}
	for _, claim := range lease.Claims() {
		if err := claim.Check(); err != nil {
			return nil, err
		}
		md.Append(tokenKey, claim.Token.String())
		md.Append(resourceKey, claim.Resource)
		if proofs {
			md.Append(proofKey, claim.Proof)
		}
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

// incoming reads the claims of a call; a call without tokens has none.
func incoming(ctx context.Context) (claims, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	tokens, resources, proofs := md.Get(tokenKey), md.Get(resourceKey), md.Get(proofKey)
	switch {
	case len(tokens) != len(resources):
		return nil, fmt.Errorf("metadata: %d values of %s and %d of %s: each token needs its resource", len(tokens), tokenKey, len(resources), resourceKey)
	case len(proofs) != 0 && len(proofs) != len(tokens):
		return nil, fmt.Errorf("metadata: %d values of %s and %d of %s: send one for each token, or none", len(tokens), tokenKey, len(proofs), proofKey)
	case len(tokens) > maxClaims:
		return nil, fmt.Errorf("metadata: %d tokens are more than %d", len(tokens), maxClaims)
	}
	var list claims
	seen := make(map[string]bool, len(tokens))
	for i, text := range tokens {
		token, err := fencing.ParseToken(text)
		if err == nil {
			err = fencing.CheckResource(resources[i])
		}
		if err == nil && seen[resources[i]] {
			err = errors.New("a resource is there twice")
		}
		if err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
		seen[resources[i]] = true
		claim := fencing.Claim{Resource: resources[i], Token: token}
		if len(proofs) > 0 {
			claim.Proof = proofs[i]
		}
		list = append(list, claim)
	}
	return list, nil
}
