package lockcore

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of requests.
const (
	MinTTL            = 100 * time.Millisecond
	MaxWait           = 10 * time.Minute
	LongestHold       = 10 * 365 * 24 * time.Hour // of MaxHold: ten years are as good as none
	MaxResourceBytes  = 256
	MaxHolderBytes    = MaxResourceBytes
	MaxMetadataBytes  = 4096
	MaxIdempotencyKey = 1024 // bytes, the caller's identity included
)

// Bounds of a lease of several resources.
const (
	MinBundle = 2
	MaxBundle = 16
)

// ValidateResource checks a resource's name. The error is a *FieldError.
func ValidateResource(resource string) error {
	return ValidateText("resource", resource, 1)
}

// ValidateText checks a text of minBytes to MaxResourceBytes: valid UTF-8 without
// control characters. The error is a *FieldError.
func ValidateText(field, text string, minBytes int) error {
	switch {
	case len(text) < minBytes || len(text) > MaxResourceBytes:
		return &FieldError{Field: field, Reason: fmt.Sprintf("must be %d to %d bytes long", minBytes, MaxResourceBytes)}
	case !utf8.ValidString(text):
		return &FieldError{Field: field, Reason: "must be valid UTF-8"}
	case strings.IndexFunc(text, unicode.IsControl) >= 0:
		return &FieldError{Field: field, Reason: "must not contain control characters"}
	}
	return nil
}
