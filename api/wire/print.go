package wire

import (
	"fmt"
	"io"
	"log/slog"
)

// A Lease's JSON contains its secrets. Its printed and logged forms do not.

// String returns the lease's resources, without the lease id and proofs.
func (l Lease) String() string {
	if len(l.Resources) > 0 {
		return fmt.Sprintf("%s of %v", l.Kind, l.Resources)
	}
	return fmt.Sprintf("%s of %s (token %d)", l.Kind, l.Resource, l.FencingToken)
}

// Format prints String for every verb of package fmt.
func (l Lease) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, l.String()) }

// LogValue returns String, for slog.
func (l Lease) LogValue() slog.Value { return slog.StringValue(l.String()) }

// String returns the resources and the tokens, without proofs.
func (p LeaseParts) String() string { return fmt.Sprint([]LeasePart(p)) }

// LogValue returns String, for slog, because the JSON of a slice would contain the proofs.
func (p LeaseParts) LogValue() slog.Value { return slog.StringValue(p.String()) }

// String returns the resource and the token, without the proof.
func (p LeasePart) String() string { return fmt.Sprintf("%s (token %d)", p.Resource, p.FencingToken) }

// Format prints String for every verb of package fmt.
func (p LeasePart) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, p.String()) }

// LogValue returns String, for slog.
func (p LeasePart) LogValue() slog.Value { return slog.StringValue(p.String()) }
