package fencing_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/fencing"
)

const keyOne, keyTwo = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20", "f102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"

func proofKeys(t *testing.T, text string) *fencing.ProofKeys {
	t.Helper()
	keys, err := fencing.ParseProofKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// The form is a contract with the SQL guard and with other languages: printf
// 'fencelock proof v1\n34\norders/42' | openssl dgst -sha256 -mac HMAC -macopt hexkey:…
func TestProofForm(t *testing.T) {
	got := proofKeys(t, "k1 "+keyOne).Prove("orders/42", 34)
	if want := "k1.5jYY5dUADrnJXCBe5YuPMtqGVxsWvkN5EwHKdaRGlas"; got != want {
		t.Errorf("proof is %s, want %s", got, want)
	}
}

func TestProofs(t *testing.T) {
	keys := proofKeys(t, "# the first signs\nk1 "+keyOne+"\r\n\nk2 "+keyTwo+"\n")
	proof := keys.Prove("r", 34)
	if err := keys.Verify("r", 34, proof); err != nil {
		t.Fatal(err)
	}
	other := proofKeys(t, "k1 "+keyTwo)
	id, mac, _ := strings.Cut(proof, ".")
	for name, err := range map[string]error{
		"another token":       keys.Verify("r", 35, proof),
		"another resource":    keys.Verify("r2", 34, proof),
		"digits moved over":   keys.Verify("4\nr", 3, proof),
		"another key":         other.Verify("r", 34, proof),
		"another key's id":    keys.Verify("r", 34, "k2."+mac),
		"an unknown id":       keys.Verify("r", 34, "k3."+mac),
		"no id":               keys.Verify("r", 34, mac),
		"cut off":             keys.Verify("r", 34, id+"."+mac[:42]),
		"more":                keys.Verify("r", 34, proof+"A"),
		"a changed letter":    keys.Verify("r", 34, id+".A"+mac[1:]),
		"a large made up one": keys.Verify("r", fencing.MaxToken, proof),
	} {
		var refused *fencing.ProofError
		if !errors.As(err, &refused) || !errors.Is(err, fencing.ErrProof) || errors.Is(err, fencing.ErrNoProof) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := keys.Verify("r", 34, ""); !errors.Is(err, fencing.ErrProof) || !errors.Is(err, fencing.ErrNoProof) {
		t.Errorf("no proof: %v", err)
	}
}

// TestProofKeyRotation: add the new key behind the old one, everywhere; then put
// it first; then drop the old one when the leases under it have ended.
func TestProofKeyRotation(t *testing.T) {
	old := proofKeys(t, "k1 "+keyOne).Prove("r", 1)
	added, moved, dropped := proofKeys(t, "k1 "+keyOne+"\nk2 "+keyTwo), proofKeys(t, "k2 "+keyTwo+"\nk1 "+keyOne), proofKeys(t, "k2 "+keyTwo)
	if !strings.HasPrefix(added.Prove("r", 1), "k1.") || !strings.HasPrefix(moved.Prove("r", 1), "k2.") {
		t.Error("the first key does not sign")
	}
	if err := errors.Join(added.Verify("r", 1, old), moved.Verify("r", 1, old), added.Verify("r", 1, moved.Prove("r", 1)), dropped.Verify("r", 1, moved.Prove("r", 1))); err != nil {
		t.Error(err)
	}
	if err := dropped.Verify("r", 1, old); !errors.Is(err, fencing.ErrProof) {
		t.Errorf("a dropped key still verifies: %v", err)
	}
}

func TestBadProofKeys(t *testing.T) {
	for name, text := range map[string]string{
		"none": "# nothing\n", "no id": keyOne, "three words": "k1 " + keyOne + " x", "short": "k1 abcd", "not hex": "k1 " + strings.Repeat("hunter2!", 8),
		"long": "k1 " + strings.Repeat("ab", 65), "twice": "k1 " + keyOne + "\nk1 " + keyTwo, "bad id": "k.1 " + keyOne, "long id": strings.Repeat("k", 17) + " " + keyOne,
	} {
		if _, err := fencing.ParseProofKeys(text); err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), keyOne) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProofContext(t *testing.T) {
	if proof := fencing.ProofFromContext(fencing.NewProofContext(context.Background(), "k1.x")); proof != "k1.x" {
		t.Errorf("the context gives %q", proof)
	}
	if proof := fencing.ProofFromContext(context.Background()); proof != "" {
		t.Errorf("an empty context gives %q", proof)
	}
}
