package lockcore_test

import (
	"strings"
	"testing"

	"github.com/fencelock/fencelock/lockcore"
)

func TestValidateResource(t *testing.T) {
	for _, good := range []string{"a", "orders/17", "ü 漢 🔒", strings.Repeat("x", lockcore.MaxResourceBytes)} {
		if err := lockcore.ValidateResource(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "a\x00", "a\n", "a\u0085b", "\xff", strings.Repeat("x", lockcore.MaxResourceBytes+1)} {
		if err := lockcore.ValidateResource(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
