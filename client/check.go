package client

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencelock/fencelock/fencing"
)

// The service replaces each byte that is not UTF-8, so two different names could become one. The client does
// not send such a request.

// checkResource returns an error that is ErrInvalid and fencing.ErrMalformedResource.
func checkResource(resource string) error {
	if err := fencing.CheckResource(resource); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// checkText checks a text other than a resource.
func checkText(name, text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("%w: the %s %q must be valid UTF-8", ErrInvalid, name, text)
	}
	return nil
}

// The service's limits of a request. A server may have a lower FENCELOCK_MAX_TTL.
const (
	minTTL           = 100 * time.Millisecond
	maxTTL           = 24 * time.Hour
	longestHold      = 10 * 365 * 24 * time.Hour
	maxResources     = 16
	maxSlots         = 32
	maxHolderBytes   = 256
	maxMetadataBytes = 4096
)

// check refuses, before anything is sent, what no service accepts.
func (a acquisition) check(resources []string) error {
	if err := a.checkResources(resources); err != nil {
		return err
	}
	if err := checkHolder(a.holder); err != nil {
		return err
	}
	switch {
	case len(a.metadata) > maxMetadataBytes:
		return fmt.Errorf("%w: Metadata has %d bytes; the most is %d", ErrInvalid, len(a.metadata), maxMetadataBytes)
	case len(a.metadata) > 0 && !json.Valid(a.metadata):
		return fmt.Errorf("%w: the metadata must be JSON", ErrInvalid)
	case a.wait < 0:
		return fmt.Errorf("%w: Wait(%s) must not be negative", ErrInvalid, a.wait)
	case a.patience != nil && *a.patience < 0:
		return fmt.Errorf("%w: Patience(%s) must not be negative", ErrInvalid, *a.patience)
	}
	if err := checkText("metadata", string(a.metadata)); err != nil {
		return err
	}
	return a.checkTimes()
}

func (a acquisition) checkResources(resources []string) error {
	seen := make(map[string]bool, len(resources))
	for _, resource := range resources {
		if err := checkResource(resource); err != nil {
			return fmt.Errorf("%w: %q", err, resource)
		}
		if seen[resource] {
			return fmt.Errorf("%w: %q is named twice", ErrInvalid, resource)
		}
		seen[resource] = true
	}
	switch {
	case len(resources) == 0 || len(resources) > maxResources:
		return fmt.Errorf("%w: a lease of %d resources: it takes 1 to %d", ErrInvalid, len(resources), maxResources)
	case a.slots != nil && (*a.slots < 1 || *a.slots > maxSlots):
		return fmt.Errorf("%w: Slots(%d) must be 1 to %d", ErrInvalid, *a.slots, maxSlots)
	case a.slots != nil && len(resources) > 1:
		return fmt.Errorf("%w: Slots(%d) must not be given with %d resources: it takes one", ErrInvalid, *a.slots, len(resources))
	}
	return nil
}

func (a acquisition) checkTimes() error {
	for _, d := range []time.Duration{a.ttl, a.minHold, a.maxHold} {
		if d%time.Millisecond != 0 {
			return fmt.Errorf("%w: %s must be whole milliseconds", ErrInvalid, d)
		}
	}
	switch {
	case a.ttl != 0 && (a.ttl < minTTL || a.ttl > maxTTL):
		return fmt.Errorf("%w: TTL(%s) must be %s to %s, or 0 for the service's", ErrInvalid, a.ttl, minTTL, maxTTL)
	case a.minHold < 0 || a.ttl > 0 && a.minHold > a.ttl:
		return fmt.Errorf("%w: MinHold(%s) must be 0 to the TTL (%s)", ErrInvalid, a.minHold, a.ttl)
	case a.maxHold < 0 || a.maxHold > longestHold || a.maxHold > 0 && a.maxHold < a.ttl:
		return fmt.Errorf("%w: MaxHold(%s) must be at least the TTL (%s), or 0 for the service's", ErrInvalid, a.maxHold, a.ttl)
	}
	return nil
}

func checkHolder(label string) error {
	switch {
	case len(label) > maxHolderBytes:
		return fmt.Errorf("%w: the holder %q has %d bytes; the most is %d", ErrInvalid, label, len(label), maxHolderBytes)
	case strings.ContainsFunc(label, unicode.IsControl):
		return fmt.Errorf("%w: the holder %q must not have control characters", ErrInvalid, label)
	}
	return checkText("holder", label)
}

func (k keeping) check() error {
	if k.margin < 0 {
		return fmt.Errorf("%w: Margin(%s) must not be negative", ErrInvalid, k.margin)
	}
	return nil
}
