package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// Values of the client show no lease id, proof or credential, however they are printed.
func TestNothingPrintsSecrets(t *testing.T) {
	f := &fake{}
	c := connectFake(t, f)
	l, err := c.Acquire(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	if l.ID() != fakeID || l.Proof() != fakeProof || l.Parts()[0].Proof() != fakeProof {
		t.Fatal("the secrets are not there")
	}
	working, stop := l.KeepAlive(t.Context())
	stop() // printing what is hidden in a struct knows no locks
	f.answers(func(r *http.Request) *http.Response {
		return response(r, http.StatusNotFound, wire.Problem{Type: "/problems/lease-not-held", Title: "The lease has ended"})
	})
	type hidden struct {
		lease *client.Lease
		part  client.Part
		c     *client.Client
	}
	bundle := lease(0)
	bundle.Resources = []wire.LeasePart{{Resource: "r", FencingToken: 34, FencingProof: fakeProof}}
	for name, value := range map[string]any{
		"client": c, "lease": l, "parts": l.Parts(), "part": l.Parts()[0], "context": working,
		"fields": struct {
			L *client.Lease
			P client.Part
		}{l, l.Parts()[0]},
		"hidden": hidden{l, l.Parts()[0], c}, "hidden pointer": &hidden{l, l.Parts()[0], c},
		"option": client.WithBearerToken(fakeBearer), "request": client.TTL(1),
		"error": l.Extend(t.Context()), "errors": errors.Join(l.Release(t.Context()), c.Release(t.Context(), fakeID)),
		"zero lease": &client.Lease{}, "zero client": &client.Client{}, "nil lease": (*client.Lease)(nil),
	} {
		wantNoSecret(t, name, value)
		if text, err := json.Marshal(value); err == nil {
			wantNone(t, name+" as JSON", string(text))
		}
	}
	// Their JSON is the API's, with the lease id.
	for name, value := range map[string]any{
		"wire": l.Wire(), "wire pointer": &bundle, "wire part": bundle.Resources[0], "wire parts": bundle.Resources, "bundle": bundle,
	} {
		wantNoSecret(t, name, value)
		text, err := json.Marshal(value)
		if err != nil || !strings.Contains(string(text), fakeProof) {
			t.Errorf("%s as JSON: %s, %v", name, text, err)
		}
	}
	if text := fmt.Sprint(l); !strings.HasPrefix(text, `lease of "r" (token 34), valid for `) {
		t.Error(text)
	}
}

// wantNoSecret prints a value in every way but JSON.
func wantNoSecret(t *testing.T, name string, value any) {
	t.Helper()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		wantNone(t, name+" "+verb, fmt.Sprintf(verb, value))
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "v", value)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "v", value)
	wantNone(t, name+" logged", log.String())
}

func wantNone(t *testing.T, name, text string) {
	t.Helper()
	for _, secret := range []string{fakeID, fakeProof, fakeBearer} {
		for _, form := range []string{secret, fmt.Sprintf("%x", secret)} {
			if strings.Contains(text, form) {
				t.Errorf("%s shows a secret: %s", name, text)
			}
		}
	}
}
