package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/fencelock/fencelock/fencing"
)

// unreadWriter is an HTTP/2 stream whose caller reads nothing until it is let go.
type unreadWriter struct {
	*httptest.ResponseRecorder
	writes chan<- int // the statuses of responses that begin
	letGo  <-chan struct{}
}

func (w unreadWriter) WriteHeader(status int) {
	w.ResponseRecorder.WriteHeader(status)
	w.writes <- status
}

func (w unreadWriter) FlushError() error {
	<-w.letGo
	return nil
}

// A caller that reads no responses gets refusals once they fill its share, then nothing at all,
// and everything again once it has read them. Other callers notice nothing.
func TestUnreadResponsesAreBounded(t *testing.T) {
	value := json.RawMessage(`"` + strings.Repeat("x", 60_000) + `"`)
	f := &fake{read: func(resource string) (fencing.Record, error) {
		return fencing.Record{Resource: resource, Value: value, Version: 1}, nil
	}}
	s := newService(t, f, withAccess(t, line("greedy", "read=*"), line("modest", "read=*")))
	writes, letGo := make(chan int), make(chan struct{})
	var asked sync.WaitGroup
	ask := func(who string) {
		asked.Go(func() {
			defer func() {
				if cause := recover(); cause != nil {
					if cause != http.ErrAbortHandler { //nolint:errorlint // net/http compares it so, too
						panic(cause)
					}
					writes <- 0
				}
			}()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/guarded/large", http.NoBody)
			r.ProtoMajor = 2
			r.Header.Set("Authorization", "Bearer "+strings.TrimPrefix(bearer(who), "Authorization: Bearer "))
			s.handler.ServeHTTP(unreadWriter{httptest.NewRecorder(), writes, letGo}, r)
		})
	}
	counts := map[int]int{}
	for range 1000 {
		ask("greedy")
		counts[<-writes]++
	}
	if n := counts[http.StatusOK]; n < 100 || n > 32<<20/120_000 {
		t.Errorf("%d responses of 60 KB are on their way to a caller that reads none", n)
	}
	if n := counts[http.StatusTooManyRequests]; n != 256 || counts[0] == 0 {
		t.Errorf("%v: refusals are bounded, too, and what is beyond them is cut off", counts)
	}
	if ask("modest"); <-writes != http.StatusOK {
		t.Error("another caller is refused")
	}
	close(letGo)
	asked.Wait()
	if ask("greedy"); <-writes != http.StatusOK {
		t.Error("a caller that has read its responses is refused")
	}
	asked.Wait()
}
