package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

func proofKeys(t *testing.T, ids ...string) *fencing.ProofKeys {
	t.Helper()
	var text strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&text, "%s %064x\n", id, id)
	}
	keys, err := fencing.ParseProofKeys(text.String())
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func proofHeader(proof string) string { return "Fencing-Proof: " + proof }

func TestLeasesCarryProofs(t *testing.T) {
	keys := proofKeys(t, "k1")
	s := newRealService(t, func(o *api.Options) { o.Proofs = func() *fencing.ProofKeys { return keys } })
	created := s.call("POST", "/locks", `{"resource":"r"}`).wants(http.StatusCreated)
	lease := decode[wire.Lease](created)
	want(t, "Location", created.header.Get("Location"), "/leases/current")
	for what, call := range map[string][]string{
		"lease": {"GET", "/leases/current", "", "Fencelock-Lease: " + lease.LeaseID}, "extend": {"POST", "/leases/current/extend", "", "Fencelock-Lease: " + lease.LeaseID},
	} {
		got := decode[wire.Lease](s.send(call).wants(http.StatusOK))
		want(t, what+": lease id", got.LeaseID, lease.LeaseID)
		want(t, what+": proof", got.FencingProof, lease.FencingProof)
	}
	if err := keys.Verify("r", fencing.Token(lease.FencingToken), lease.FencingProof); err != nil {
		t.Error(err)
	}
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID).wants(http.StatusNoContent)

	several := decode[wire.Lease](s.call("POST", "/locks", `{"resources":["a","b"]}`).wants(http.StatusCreated))
	extended := decode[wire.Lease](s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+several.LeaseID).wants(http.StatusOK))
	want(t, "proof of several", several.FencingProof, "")
	for _, lease := range []wire.Lease{several, extended} {
		for _, part := range lease.Resources {
			if err := keys.Verify(part.Resource, fencing.Token(part.FencingToken), part.FencingProof); err != nil {
				t.Error(err)
			}
		}
	}
	if public := s.call("GET", "/locks/a", "").body; strings.Contains(public, "k1.") {
		t.Errorf("a proof is shown to everybody: %s", public)
	}
}

func TestNoKeyNoProof(t *testing.T) {
	s := newRealService(t)
	if body := s.call("POST", "/locks", `{"resource":"r"}`).wants(http.StatusCreated).body; strings.Contains(body, "proof") || strings.Contains(decode[wire.Lease](answered{t: t, body: body}).LeaseID, ".") {
		t.Errorf("lease %s", body)
	}
}

// TestAnEditedLeaseIDIsOfNoLease: whoever edits the token in a lease id gets
// neither a lease nor a proof of it, and moves nothing.
func TestAnEditedLeaseIDIsOfNoLease(t *testing.T) {
	keys := proofKeys(t, "k1")
	s := newRealService(t, func(o *api.Options) { o.Proofs = func() *fencing.ProofKeys { return keys } })
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"r"}`).wants(http.StatusCreated))
	raw, err := base64.RawURLEncoding.DecodeString(lease.LeaseID)
	if err != nil {
		t.Fatal(err)
	}
	token := binary.AppendUvarint(nil, uint64(lease.FencingToken))
	at := bytes.Index(raw, token)
	if at < 0 {
		t.Fatal("no token in the id")
	}
	forged := slices.Concat(raw[:at], binary.AppendUvarint(nil, uint64(fencing.MaxToken)), raw[at+len(token):])
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID).wants(http.StatusNoContent)
	for _, presented := range []string{base64.RawURLEncoding.EncodeToString(forged), lease.LeaseID + ".", lease.LeaseID + "." + keys.Prove("r", fencing.MaxToken), "x"} {
		for _, call := range [][]string{{"POST", "/leases/current/extend", ""}, {"GET", "/leases/current", ""}, {"DELETE", "/leases/current", ""}} {
			s.send(call, "Fencelock-Lease: "+presented).wants(http.StatusNotFound).problem("lease-not-held")
		}
	}
	again := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"r"}`).wants(http.StatusCreated))
	if again.FencingToken <= lease.FencingToken || again.FencingToken > lease.FencingToken+10 {
		t.Errorf("token %d after %d", again.FencingToken, lease.FencingToken)
	}
}

func TestGuardedRecordsDemandProofs(t *testing.T) {
	keys := proofKeys(t, "k1")
	s := newRealService(t, func(o *api.Options) {
		o.Proofs, o.ProofRequired = func() *fencing.ProofKeys { return keys }, true
	})
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"r"}`).wants(http.StatusCreated))
	other := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"r2"}`).wants(http.StatusCreated))
	big := fmt.Sprintf("Fencing-Token: %d", fencing.MaxToken)
	for _, method := range []string{"PUT", "POST"} {
		body := "1"
		if method == "POST" {
			body = ""
		}
		s.call(method, "/guarded/r", body, tokenHeader(lease)).wants(http.StatusPreconditionRequired).problem("proof-required")
		s.call(method, "/guarded/r", body, big).wants(http.StatusPreconditionRequired).problem("proof-required")
		s.call(method, "/guarded/r", body, big, proofHeader(lease.FencingProof)).wants(http.StatusForbidden).problem("proof-refused")
		s.call(method, "/guarded/r", body, tokenHeader(lease), proofHeader(other.FencingProof)).wants(http.StatusForbidden).problem("proof-refused")
		s.call(method, "/guarded/r2", body, tokenHeader(lease), proofHeader(lease.FencingProof)).wants(http.StatusForbidden).problem("proof-refused")
		s.call(method, "/guarded/r", body, tokenHeader(lease), proofHeader("k1.nonsense")).wants(http.StatusForbidden).problem("proof-refused")
		s.call(method, "/guarded/r", body, tokenHeader(lease), proofHeader(proofKeys(t, "k2").Prove("r", fencing.Token(lease.FencingToken)))).wants(http.StatusForbidden).problem("proof-refused")
		s.call(method, "/guarded/r", body, tokenHeader(lease), proofHeader(lease.FencingProof), proofHeader(lease.FencingProof)).refusedField("Fencing-Proof")
	}
	// None of it has left a mark.
	s.call("GET", "/guarded/r", "").wants(http.StatusNotFound)
	s.call("GET", "/guarded/r2", "").wants(http.StatusNotFound)
	s.call("POST", "/guarded/r", "", tokenHeader(lease), proofHeader(lease.FencingProof)).wants(http.StatusOK)
	record := decode[wire.Record](s.call("PUT", "/guarded/r", "1", tokenHeader(lease), proofHeader(lease.FencingProof)).wants(http.StatusOK))
	want(t, "mark", record.HighestToken, lease.FencingToken)

	// The key is changed: the old one verifies as long as it is kept.
	keys = proofKeys(t, "k2", "k1")
	extended := decode[wire.Lease](s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+lease.LeaseID).wants(http.StatusOK))
	if !strings.HasPrefix(extended.FencingProof, "k2.") {
		t.Errorf("proof %s, want one by the first key", extended.FencingProof)
	}
	for _, proof := range []string{lease.FencingProof, extended.FencingProof} {
		s.call("PUT", "/guarded/r", "1", tokenHeader(lease), proofHeader(proof)).wants(http.StatusOK)
	}
	keys = proofKeys(t, "k2")
	s.call("PUT", "/guarded/r", "1", tokenHeader(lease), proofHeader(lease.FencingProof)).wants(http.StatusForbidden).problem("proof-refused")
	s.call("PUT", "/guarded/r", "1", tokenHeader(lease), proofHeader(extended.FencingProof)).wants(http.StatusOK)
}

// Where none is demanded, a proof is nobody's business.
func TestProofsThatNobodyDemands(t *testing.T) {
	s := newService(t, &fake{write: func(_ context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
		return fencing.Record{Resource: resource, Mark: token, Value: value, Version: 1}, nil
	}})
	s.call("PUT", "/guarded/r", "1", "Fencing-Token: 34", proofHeader("k1.nonsense")).wants(http.StatusOK)
}
