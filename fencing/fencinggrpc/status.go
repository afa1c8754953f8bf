package fencinggrpc

import (
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock/fencing"
)

// Domain is the domain of the ErrorInfo in the statuses of this package.
const Domain = "fencelock"

// The reasons of an ErrorInfo.
const (
	reasonStale         = "STALE_TOKEN"
	reasonTokenRequired = "TOKEN_REQUIRED"
	reasonProofRequired = "PROOF_REQUIRED"
	reasonProofRefused  = "PROOF_REFUSED"
	reasonInvalid       = "INVALID_CLAIM"
	reasonUnavailable   = "GUARD_UNAVAILABLE"
)

// refuse converts an error of a guard to a status. It returns any other error unchanged, including a status.
func refuse(err error) error {
	var stale *fencing.StaleTokenError
	var proof *fencing.ProofError
	switch {
	case errors.As(err, &stale):
		return statusOf(codes.FailedPrecondition, reasonStale, stale.Error(), map[string]string{
			"resource": stale.Resource, "presented": stale.Presented.String(), "highest": stale.Highest.String(),
		})
	case errors.As(err, &proof) && proof.Missing:
		return statusOf(codes.InvalidArgument, reasonProofRequired, proof.Error(), proofDetails(proof))
	case errors.As(err, &proof):
		return statusOf(codes.PermissionDenied, reasonProofRefused, proof.Error(), proofDetails(proof))
	case errors.Is(err, fencing.ErrMalformedToken), errors.Is(err, fencing.ErrMalformedResource):
		return statusOf(codes.InvalidArgument, reasonInvalid, err.Error(), nil)
	case errors.Is(err, fencing.ErrGuardUnavailable): // the error's own text may contain host names
		return statusOf(codes.Unavailable, reasonUnavailable, fencing.ErrGuardUnavailable.Error(), nil)
	}
	return err
}

func proofDetails(p *fencing.ProofError) map[string]string {
	return map[string]string{"resource": p.Resource, "presented": p.Presented.String()}
}

// statusOf makes a status. If the details cannot be encoded, the status has only its code and text.
func statusOf(code codes.Code, reason, text string, details map[string]string) error {
	plain := status.New(code, text)
	detailed, err := plain.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: details})
	if err != nil {
		return plain.Err()
	}
	return detailed.Err()
}

// cause finds the error that a status of the server's interceptors represents, and joins it with the status.
// It returns any other error unchanged.
func cause(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		if of := causeOf(info); of != nil {
			return &refusal{status: s, cause: of}
		}
	}
	return err
}

func causeOf(info *errdetails.ErrorInfo) error {
	details := info.GetMetadata()
	presented, _ := fencing.ParseToken(details["presented"]) // 0 if the server does not send it
	highest, _ := fencing.ParseToken(details["highest"])
	switch info.GetReason() {
	case reasonStale:
		return &fencing.StaleTokenError{Resource: details["resource"], Presented: presented, Highest: highest}
	case reasonProofRequired, reasonProofRefused:
		return &fencing.ProofError{Resource: details["resource"], Presented: presented, Missing: info.GetReason() == reasonProofRequired}
	case reasonUnavailable:
		return fencing.ErrGuardUnavailable
	}
	return nil
}
