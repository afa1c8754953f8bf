package lockcore

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxSlots bounds the slots of a resource.
const MaxSlots = 32

// slotMark stands between a resource and the number of its slot.
const slotMark = "#slot"

// SlotName names a slot of a resource. A slot is a resource like any other, with a lock,
// a queue and tokens of its own.
func SlotName(resource string, slot int) string { return resource + slotMark + strconv.Itoa(slot) }

// SlotOf gives the resource and the number of a slot's name; 0 if the name is none of a slot.
func SlotOf(name string) (resource string, slot int) {
	resource, number, _ := strings.Cut(name, slotMark)
	if n, err := strconv.Atoi(number); err == nil && n >= 1 && n <= MaxSlots && resource != "" && SlotName(resource, n) == name {
		return resource, n
	}
	return name, 0
}

// SlotNames names the first n slots of a resource.
func SlotNames(resource string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = SlotName(resource, i+1)
	}
	return names
}

// ValidateSlots checks the number of slots that a request for a resource names; 0 is for
// none. The error is a *FieldError.
func ValidateSlots(resource string, slots int) error {
	switch {
	case slots < 0 || slots > MaxSlots:
		return &FieldError{Field: "slots", Reason: fmt.Sprintf("must be a whole number from 1 to %d", MaxSlots)}
	case slots == 0:
		return nil
	case strings.Contains(resource, slotMark):
		return &FieldError{Field: "slots", Reason: fmt.Sprintf("must not be given for a resource with %q in its name", slotMark)}
	case len(SlotName(resource, slots)) > MaxResourceBytes:
		return &FieldError{Field: "resource", Reason: fmt.Sprintf("must be at most %d bytes long, with the number of the slot", MaxResourceBytes)}
	}
	return nil
}
