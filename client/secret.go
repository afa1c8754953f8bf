package client

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unique"

	"github.com/fencelock/fencelock/fencing"
)

// secret is a text that package fmt cannot print, even inside another value, because it is behind a pointer.
// Equal texts are equal secrets, and the zero secret hides "".
type secret struct{ text unique.Handle[string] }

func hide(text string) secret {
	if text == "" {
		return secret{}
	}
	return secret{unique.Make(text)}
}

func (s secret) reveal() string {
	if s == (secret{}) {
		return ""
	}
	return s.text.Value()
}

// String returns the lease's resources and its validity, without the lease id and proofs.
func (l *Lease) String() string {
	if l == nil {
		return "no lease"
	}
	var parts []string
	for _, p := range l.Parts() {
		parts = append(parts, p.String())
	}
	return fmt.Sprintf("lease of %s, valid for %s", strings.Join(parts, " and "), l.Validity().Round(time.Millisecond))
}

// Format prints String for every verb of package fmt.
func (l *Lease) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, l.String()) }

// LogValue returns the resources, the tokens and the validity, for slog.
func (l *Lease) LogValue() slog.Value {
	if l == nil {
		return slog.StringValue(l.String())
	}
	return slog.GroupValue(slog.Any("parts", l.Parts()), slog.Duration("validity", l.Validity()))
}

// MarshalJSON writes the resources, the tokens and the validity. Use Wire for the lease with its secrets.
func (l *Lease) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Parts      []Part `json:"parts"`
		ValidityMS int64  `json:"validity_ms"`
	}{l.Parts(), l.Validity().Milliseconds()})
}

// String returns the resource and the token, without the proof.
func (p Part) String() string { return fmt.Sprintf("%q (token %s)", p.Resource, p.Token) }

// Format prints String for every verb of package fmt.
func (p Part) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, p.String()) }

// MarshalJSON writes the resource and the token, without the proof.
func (p Part) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Resource string        `json:"resource"`
		Token    fencing.Token `json:"fencing_token"`
	}{p.Resource, p.Token})
}

// String lists the servers, without a credential.
func (c *Client) String() string {
	if c.made() != nil {
		return "client of no servers"
	}
	return "client of " + strings.Join(c.servers, ", ")
}

// Format prints String for every verb of package fmt.
func (c *Client) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, c.String()) }

// LogValue returns String, for slog.
func (c *Client) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText returns String.
func (c *Client) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
