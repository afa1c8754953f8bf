package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/engine"
)

// Variable documents one variable of the configuration.
type Variable struct {
	Name, Default, Meaning string
	Group                  string // the heading on the reference page
	Secret                 bool   // its value is never shown
}

// Variables lists the configuration in the order of its fields. envconfig can print such a list too, but
// only with a template, for which the linker keeps every method of the program. A test compares the two
// lists.
func Variables() []Variable {
	var list []Variable
	for field := range reflect.TypeFor[Config]().Fields() {
		if field.Tag.Get("ignored") != "true" {
			v := Variable{Name: variable(field.Name), Default: field.Tag.Get("default"), Meaning: strings.Replace(field.Tag.Get("desc"), "{engines}", engine.Meanings(), 1), Group: field.Tag.Get("group")}
			if v.Secret = field.Tag.Get("secret") == "true"; v.Secret {
				v.Meaning += " Secret."
			}
			list = append(list, v)
		}
	}
	return list
}

var wordStart = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)

// variable returns a field's variable as split_words does: OIDCClaim is FENCELOCK_OIDC_CLAIM.
func variable(field string) string {
	return prefix + "_" + strings.ToUpper(wordStart.ReplaceAllString(field, "${1}${3}_${2}${4}"))
}

// checkTags refuses values that the tags oneof and range exclude.
func (p *problems) checkTags(c *Config) {
	for field, value := range reflect.ValueOf(c).Elem().Fields() {
		if text := field.Tag.Get("oneof"); text != "" {
			allowed := strings.Fields(text)
			if chosen := value.String(); chosen != "" && !slices.Contains(allowed, chosen) {
				p.refuse(variable(field.Name), "must be "+strings.Join(allowed, " or "))
			}
		}
		var least, most int64
		if n, _ := fmt.Sscan(field.Tag.Get("range"), &least, &most); n == 2 && (value.Int() < least || value.Int() > most) {
			p.refuse(variable(field.Name), fmt.Sprintf("must be a whole number from %d to %d", least, most))
		}
	}
}

// DefaultOf returns the default of a variable.
func DefaultOf(name string) string {
	list := Variables()
	return list[slices.IndexFunc(list, func(v Variable) bool { return v.Name == name })].Default
}

// Help returns the description of the configuration for --help.
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

// wrap breaks text into lines of about width, each of which begins with indent.
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

// Misspelt is an unknown variable with our prefix, and the most similar known variable.
type Misspelt struct{ Name, Closest string }

// MisspeltVariables looks for misspelt variables in the environment. others are variables that other
// commands read. It skips the variables with the same prefix that Kubernetes sets for a service called
// fencelock.
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
