package lockcore

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of requests.
const (
	MinTTL            = 100 * time.Millisecond
	MaxWait           = 10 * time.Minute
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

// ValidateText checks a text of at least so many bytes, and at most MaxResourceBytes:
// valid UTF-8 without control characters. The error is a *FieldError.
func ValidateText(field, text string, least int) error {
	switch {
	case len(text) < least || len(text) > MaxResourceBytes:
		return &FieldError{Field: field, Reason: fmt.Sprintf("must be %d to %d bytes long", least, MaxResourceBytes)}
	case !utf8.ValidString(text):
		return &FieldError{Field: field, Reason: "must be valid UTF-8"}
	}
	for _, r := range text {
		if unicode.IsControl(r) {
			return &FieldError{Field: field, Reason: "must not contain control characters"}
		}
	}
	return nil
}
