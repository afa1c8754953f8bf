package api_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/fencelock/fencelock/api"
)

// The page for authors of clients says of every refusal what to do.
func TestClientsPageHasAllProblems(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (\\d{3}) \\|").FindAllStringSubmatch(string(page), -1) {
		listed[row[1]] = row[2]
	}
	for _, kind := range api.Kinds() {
		if got, want := listed[kind.Slug], strconv.Itoa(kind.Status); got != want {
			t.Errorf("clients.md lists %s with status %q, want %s", kind.Slug, got, want)
		}
		delete(listed, kind.Slug)
	}
	for slug := range listed {
		t.Errorf("clients.md lists %s, which is no problem of the API", slug)
	}
}
