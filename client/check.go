package client

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/fencelock/fencelock/fencing"
)

// The service would take a replacement character for each byte that is not UTF-8, so
// that two names could become one; such a request is not sent.

// checkResource returns an error that is ErrInvalid and fencing.ErrMalformedResource.
func checkResource(resource string) error {
	if err := fencing.CheckResource(resource); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// checkText checks a text that is no resource, for what cannot be sent.
func checkText(name, text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("%w: the %s %q must be valid UTF-8", ErrInvalid, name, text)
	}
	return nil
}

func (a acquisition) check(resources []string) error {
	for _, resource := range resources {
		if err := checkResource(resource); err != nil {
			return fmt.Errorf("%w: %q", err, resource)
		}
	}
	if err := checkText("holder", a.holder); err != nil {
		return err
	}
	if len(a.metadata) > 0 && !json.Valid(a.metadata) {
		return fmt.Errorf("%w: the metadata must be JSON", ErrInvalid)
	}
	if err := checkText("metadata", string(a.metadata)); err != nil {
		return err
	}
	if a.slots < 0 || a.slots > 0 && len(resources) > 1 {
		return fmt.Errorf("%w: Slots(%d) for %d resources: it takes a number of at least 1, and one resource", ErrInvalid, a.slots, len(resources))
	}
	if a.wait < 0 {
		return fmt.Errorf("%w: Wait(%s) must not be negative", ErrInvalid, a.wait)
	}
	for _, d := range []time.Duration{a.ttl, a.minHold, a.maxHold} {
		if err := checkMillis(d); err != nil {
			return err
		}
	}
	return nil
}

func checkMillis(d time.Duration) error {
	if d%time.Millisecond != 0 {
		return fmt.Errorf("%w: %s must be whole milliseconds", ErrInvalid, d)
	}
	return nil
}
