package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

// variable is a line of the configuration's documentation.
type variable struct{ name, fallback, meaning string }

// variables lists the configuration in the order of its fields.
func variables() []variable {
	const format = "{{range .}}{{usage_key .}}\t{{usage_default .}}\t{{usage_description .}}\n{{end}}"
	var table bytes.Buffer
	if err := envconfig.Usagef(envPrefix, &environment{}, &table, format); err != nil {
		panic(err) // the struct is wrong: every test would show it
	}
	var list []variable
	for line := range strings.Lines(table.String()) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		list = append(list, variable{name: parts[0], fallback: parts[1], meaning: parts[2]})
	}
	return list
}

// defaultOf is the default of a variable.
func defaultOf(name string) string {
	list := variables()
	return list[slices.IndexFunc(list, func(v variable) bool { return v.name == name })].fallback
}

// variablesHelp is the configuration for --help.
func variablesHelp() string {
	var b strings.Builder
	b.WriteString("Configuration (environment; durations in Go's form, 30s):\n")
	for _, v := range variables() {
		fmt.Fprintf(&b, "\n  %s", v.name)
		if v.fallback != "" {
			fmt.Fprintf(&b, " (%s)", v.fallback)
		}
		b.WriteString(wrap(v.meaning, "\n      ", 90))
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

// misspelt is a variable of ours by its prefix that means nothing to us.
type misspelt struct{ name, closest string }

// misspeltVariables looks for variables that are probably typing mistakes. The
// names that Kubernetes sets for a service called fencelock are none.
func misspeltVariables() []misspelt {
	known := clientVariables()
	for _, v := range variables() {
		known = append(known, v.name)
	}
	var found []misspelt
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		foreign := strings.HasPrefix(name, "FENCELOCK_SERVICE_") || strings.HasPrefix(name, "FENCELOCK_PORT")
		if strings.HasPrefix(name, envPrefix+"_") && !foreign && !slices.Contains(known, name) {
			found = append(found, misspelt{name: name, closest: closest(name, known)})
		}
	}
	return found
}

func closest(name string, known []string) string {
	return slices.MinFunc(known, func(a, b string) int {
		return distance(name, a) - distance(name, b)
	})
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
