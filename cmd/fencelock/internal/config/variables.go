package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Variable documents one variable of the configuration.
type Variable struct{ Name, Default, Meaning string }

// Variables lists the configuration in the order of its fields. envconfig has a list
// too, but a template writes it, for which the linker keeps every method of the
// program; a test compares the two.
func Variables() []Variable {
	var list []Variable
	for field := range reflect.TypeFor[Config]().Fields() {
		if field.Tag.Get("ignored") != "true" {
			list = append(list, Variable{Name: variable(field.Name), Default: field.Tag.Get("default"), Meaning: field.Tag.Get("desc")})
		}
	}
	return list
}

var wordStart = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)

// variable names a field's variable as split_words does: OIDCClaim is FENCELOCK_OIDC_CLAIM.
func variable(field string) string {
	return prefix + "_" + strings.ToUpper(wordStart.ReplaceAllString(field, "${1}${3}_${2}${4}"))
}

// DefaultOf is the default of a variable.
func DefaultOf(name string) string {
	list := Variables()
	return list[slices.IndexFunc(list, func(v Variable) bool { return v.Name == name })].Default
}

// Help is the configuration for --help.
func Help() string {
	var b strings.Builder
	b.WriteString("Configuration (environment; durations in Go's form, 30s):\n")
	for _, v := range Variables() {
		fmt.Fprintf(&b, "\n  %s", v.Name)
		if v.Default != "" {
			fmt.Fprintf(&b, " (%s)", v.Default)
		}
		b.WriteString(wrap(v.Meaning, "\n      ", 90))
	}
	b.WriteByte('\n')
	return b.String()
}

// wrap breaks text into lines of about width, each begun by indent.
func wrap(text, indent string, width int) string {
	var b strings.Builder
	column := width
	for word := range strings.FieldsSeq(text) {
		if column+1+len(word) > width {
			b.WriteString(indent)
			column = 0
		} else {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// Misspelt is a variable with our prefix that has no meaning, and the most similar
// one that has.
type Misspelt struct{ Name, Closest string }

// MisspeltVariables looks for typing mistakes in the environment; others are the
// variables that mean something to the commands. Kubernetes sets variables of the
// same prefix for a service called fencelock: those are skipped.
func MisspeltVariables(others []string) (found []Misspelt) {
	known := slices.Clone(others)
	for _, v := range Variables() {
		known = append(known, v.Name)
	}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		foreign := strings.HasPrefix(name, prefix+"_SERVICE_") || strings.HasPrefix(name, prefix+"_PORT")
		if strings.HasPrefix(name, prefix+"_") && !foreign && !slices.Contains(known, name) {
			closest := slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
			found = append(found, Misspelt{Name: name, Closest: closest})
		}
	}
	return found
}

// distance counts the single-letter changes between two names (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
