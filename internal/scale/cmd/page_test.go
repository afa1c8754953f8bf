package main

import (
	"flag"
	"os"
	"regexp"
	"testing"
)

var update = flag.Bool("update", false, "write the tables into the page")

const page = "../../../docs/explanation/scale.md"

// The page's tables are what the command prints.
func TestPage(t *testing.T) {
	o, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for name, table := range map[string]string{"sizes": o.sizes(), "advice": advice(), "distances": o.distances(), "failures": o.failures(10, 10)} {
		part := regexp.MustCompile(`(?s)(<!-- capacity: ` + name + ` -->\n).*?(<!-- end -->)`)
		if !part.MatchString(text) {
			t.Errorf("the page has no place for the table of %s", name)
		}
		text = part.ReplaceAllString(text, "${1}"+table+"${2}")
	}
	if text == string(raw) {
		return
	}
	if !*update {
		t.Fatal("the page's tables are not what the program prints: go test ./internal/scale/cmd -update")
	}
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOptions(t *testing.T) {
	o, err := parse([]string{"-servers", "4", "-trips", "1ms,20ms", "-down", "1", "-nodes", "3"})
	if err != nil || !o.one || o.Servers != 4 || len(o.Trips) != 2 || o.Down != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range [][]string{{"-nodes", "4"}, {"-trips", "soon"}, {"-down", "3"}, {"extra"}, {"-costs", "/nonexistent"}} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}
