package fencing_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

type validLease struct {
	fencing.Claim
	left time.Duration
}

func (l validLease) Validity() time.Duration { return l.left }

// A valid lease has the largest token of its cluster, so a refusal of it says what is wrong.
func TestARefusedValidLeaseNamesTheSuspicion(t *testing.T) {
	stale := fmt.Errorf("claim: %w", &fencing.StaleTokenError{Resource: "a", Presented: 5, Highest: 9})
	lease := validLease{Claim: fencing.Claim{Resource: "a", Token: 5}, left: time.Second}
	if err := fencing.Suspect(lease, stale); !errors.Is(err, fencing.ErrStaleToken) || !strings.Contains(err.Error(), "another fencelock cluster") {
		t.Error(err)
	}
	other := errors.New("other")
	for _, err := range []error{fencing.Suspect(validLease{Claim: lease.Claim}, stale), fencing.Suspect(lease.Claim, stale), fencing.Suspect(lease, other)} {
		if strings.Contains(err.Error(), "another") {
			t.Error(err)
		}
	}
}

func TestAPrintedClaimHasNoProof(t *testing.T) {
	claim := fencing.Claim{Resource: "a\n", Token: 5, Proof: "secret"}
	json, err := claim.MarshalJSON()
	if text := fmt.Sprintf("%v %+v %#v %s", claim, claim, claim, json); err != nil || strings.Contains(text, "secret") || !strings.Contains(text, `"a\n" (token 5)`) {
		t.Error(text)
	}
}
