package lockcore

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Limits are what a request may ask for. The zero value of a field takes its default.
type Limits struct {
	DefaultTTL time.Duration // of a request without a TTL; default 30s, at most MaxTTL
	MinTTL     time.Duration // the shortest TTL of a request; default MinTTL
	MaxTTL     time.Duration // the longest TTL of a request; default 60s
}

// WithDefaults fills in the defaults.
func (l Limits) WithDefaults() Limits {
	defaultTo(&l.MinTTL, MinTTL)
	defaultTo(&l.MaxTTL, 60*time.Second)
	defaultTo(&l.DefaultTTL, min(30*time.Second, l.MaxTTL))
	return l
}

func defaultTo(field *time.Duration, value time.Duration) {
	if *field == 0 {
		*field = value
	}
}

// Validate refuses limits that contradict each other.
func (l Limits) Validate() error {
	switch {
	case l.MinTTL < MinTTL:
		return fmt.Errorf("MinTTL is %s: at least %s", l.MinTTL, MinTTL)
	case l.MaxTTL < l.MinTTL:
		return fmt.Errorf("MaxTTL is %s: at least %s", l.MaxTTL, l.MinTTL)
	case l.DefaultTTL < l.MinTTL || l.DefaultTTL > l.MaxTTL:
		return fmt.Errorf("DefaultTTL is %s: %s to MaxTTL (%s)", l.DefaultTTL, l.MinTTL, l.MaxTTL)
	}
	return nil
}

// CheckTTL replaces 0 by the default and refuses a TTL out of bounds. The error is a *FieldError.
func (l Limits) CheckTTL(ttl time.Duration) (time.Duration, error) {
	if ttl == 0 {
		return l.DefaultTTL, nil
	}
	if ttl < l.MinTTL || ttl > l.MaxTTL {
		reason := fmt.Sprintf("must be a whole number from %d to %d", l.MinTTL.Milliseconds(), l.MaxTTL.Milliseconds())
		if l.MinTTL > MinTTL && ttl < l.MinTTL {
			reason += ": the store that keeps the locks may take longer than a shorter lease lasts"
		}
		return 0, &FieldError{Field: "ttl_ms", Reason: reason}
	}
	return ttl.Truncate(time.Millisecond), nil
}

// Check refuses a request out of bounds, and makes it as it is carried out: with a TTL, and
// its resources in order. The error has a *FieldError for each field.
func (l Limits) Check(req *AcquireRequest) (err error) {
	if req.TTL, err = l.CheckTTL(req.TTL); err != nil {
		return err
	}
	if req.MinHold < 0 || req.MinHold > req.TTL {
		return &FieldError{Field: "min_hold_ms", Reason: fmt.Sprintf("must be 0 to the TTL (%d)", req.TTL.Milliseconds())}
	}
	if req.MaxHold < 0 || req.MaxHold > 0 && req.MaxHold < req.TTL {
		return &FieldError{Field: "max_hold_ms", Reason: fmt.Sprintf("must be 0 for no bound, or at least the TTL (%d)", req.TTL.Milliseconds())}
	}
	if req.MaxHold > LongestHold {
		return &FieldError{Field: "max_hold_ms", Reason: fmt.Sprintf("must be at most %d", LongestHold.Milliseconds())}
	}
	if req.Wait < 0 || req.Wait > MaxWait {
		err = &FieldError{Field: "wait_ms", Reason: fmt.Sprintf("must be a whole number from 0 to %d", MaxWait.Milliseconds())}
	}
	if len(req.Metadata) > MaxMetadataBytes {
		err = &FieldError{Field: "metadata", Reason: fmt.Sprintf("must be at most %d bytes long", MaxMetadataBytes)}
	}
	if len(req.IdempotencyKey) > MaxIdempotencyKey {
		err = &FieldError{Field: "Idempotency-Key", Reason: "is too long"}
	}
	named := errors.Join(ValidateResource(req.Resource), ValidateSlots(req.Resource, req.Slots))
	if req.Resources != nil {
		named = checkResources(req)
	}
	return errors.Join(named, ValidateText("holder", req.Holder, 0), err)
}

// checkResources sorts the resources and refuses a wrong list.
func checkResources(req *AcquireRequest) error {
	if req.Resource != "" {
		return &FieldError{Field: "resources", Reason: "must not be given together with resource"}
	}
	if req.Slots != 0 {
		return &FieldError{Field: "slots", Reason: "must not be given together with resources"}
	}
	if n := len(req.Resources); n < MinBundle || n > MaxBundle {
		return &FieldError{Field: "resources", Reason: fmt.Sprintf("must name %d to %d resources", MinBundle, MaxBundle)}
	}
	req.Resources = slices.Clone(req.Resources)
	slices.Sort(req.Resources)
	for i, resource := range req.Resources {
		if err := ValidateText("resources", resource, 1); err != nil {
			return err
		}
		if i > 0 && resource == req.Resources[i-1] {
			return &FieldError{Field: "resources", Reason: "must not name a resource twice"}
		}
	}
	return nil
}
