package config

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/kelseyhightower/envconfig"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/engine"
)

// TestVariablesAreThoseOfEnvconfig compares the list with envconfig's own.
func TestVariablesAreThoseOfEnvconfig(t *testing.T) {
	const format = "{{range .}}{{usage_key .}}|{{usage_default .}}|{{usage_description .}}\n{{end}}"
	var want, got bytes.Buffer
	if err := envconfig.Usagef(prefix, &Config{}, &want, format); err != nil {
		t.Fatal(err)
	}
	for _, v := range Variables() {
		fmt.Fprintf(&got, "%s|%s|%s\n", v.Name, v.Default, strings.TrimSuffix(v.Meaning, " Secret."))
	}
	described := strings.Replace(want.String(), "{engines}", engine.Meanings(), 1)
	if got.String() != described {
		t.Errorf("Variables:\n%s\nenvconfig:\n%s", &got, described)
	}
}
