package wire

import (
	"fmt"
	"io"
	"log/slog"
)

// A Lease's JSON has its secrets. What is printed or logged of it has none.

// String shows what the lease is of, and neither the lease id nor a proof.
func (l Lease) String() string {
	if len(l.Resources) > 0 {
		return fmt.Sprintf("%s of %v", l.Kind, l.Resources)
	}
	return fmt.Sprintf("%s of %s (token %d)", l.Kind, l.Resource, l.FencingToken)
}

// Format prints String for every verb of package fmt.
func (l Lease) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, l.String()) }

// LogValue is for slog: what String says.
func (l Lease) LogValue() slog.Value { return slog.StringValue(l.String()) }

// String shows the resources and the tokens, and no proof.
func (p LeaseParts) String() string { return fmt.Sprint([]LeasePart(p)) }

// LogValue is for slog: what String says. JSON of a slice would have the proofs.
func (p LeaseParts) LogValue() slog.Value { return slog.StringValue(p.String()) }

// String shows the resource and the token, and not the proof.
func (p LeasePart) String() string { return fmt.Sprintf("%s (token %d)", p.Resource, p.FencingToken) }

// Format prints String for every verb of package fmt.
func (p LeasePart) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, p.String()) }

// LogValue is for slog: what String says.
func (p LeasePart) LogValue() slog.Value { return slog.StringValue(p.String()) }
