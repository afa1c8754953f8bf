package config

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

// Variable documents one variable of the configuration.
type Variable struct{ Name, Default, Meaning string }

// Variables lists the configuration in the order of its fields.
func Variables() []Variable {
	const format = "{{range .}}{{usage_key .}}\t{{usage_default .}}\t{{usage_description .}}\n{{end}}"
	var table bytes.Buffer
	if err := envconfig.Usagef(prefix, &Config{}, &table, format); err != nil {
		panic(err) // the struct is wrong: every test would show it
	}
	var list []Variable
	for line := range strings.Lines(table.String()) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		list = append(list, Variable{Name: parts[0], Default: parts[1], Meaning: parts[2]})
	}
	return list
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
