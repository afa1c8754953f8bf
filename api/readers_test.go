package api_test

import (
	"net/http"
	"testing"
)

// Four callers that read as many streams as they can leave some to a fifth, and to an
// administrator who comes after them all.
func TestFewCallersDoNotTakeAllReaders(t *testing.T) {
	t.Parallel()
	_, option := withEvents(t)
	greedy := []string{"a", "b", "c", "d"}
	lines := []string{line("fifth", "read=*"), line("boss", "admin=*")}
	for _, name := range greedy {
		lines = append(lines, line(name, "read=*"))
	}
	s := newService(t, &fake{}, option, withAccess(t, lines...))
	for _, name := range greedy {
		for getsAStream(t, s, name) {
			continue
		}
	}
	listen(t, s, "/events", bearer("fifth"))
	for getsAStream(t, s, "fifth") {
		continue
	}
	listen(t, s, "/events", bearer("boss"))
}

// getsAStream reports whether the caller gets one more stream, which stays open until the test ends.
func getsAStream(t *testing.T, s *service, name string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret-of-"+name)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp.StatusCode == http.StatusOK
}
