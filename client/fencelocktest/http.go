package fencelocktest

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /locks", s.acquire)
	mux.HandleFunc("GET /locks", s.list)
	mux.HandleFunc("GET /locks/{resource}", s.inspect)
	mux.HandleFunc("POST /cancel", s.cancel)
	mux.HandleFunc("POST /breaks", s.breakLease)
	mux.HandleFunc("GET /leases/current", s.ofLease(s.look))
	mux.HandleFunc("POST /leases/current/extend", s.ofLease(s.look))
	mux.HandleFunc("DELETE /leases/current", s.ofLease(s.release))
	mux.HandleFunc("GET /guarded", s.listRecords)
	mux.HandleFunc("GET /guarded/{resource}", s.readRecord)
	mux.HandleFunc("PUT /guarded/{resource}", s.attempt(fencing.KindWrite))
	mux.HandleFunc("DELETE /guarded/{resource}", s.attempt(fencing.KindWrite))
	mux.HandleFunc("POST /guarded/{resource}", s.attempt(fencing.KindClaim))
	mux.HandleFunc("GET /history", s.readHistory)
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, wire.Health{Status: "ok"}) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, wire.Ready{Ready: true, Quorum: 1, Voting: 1, Nodes: []wire.Node{}})
	})
	mux.HandleFunc("GET /whoami", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, wire.Caller{Rules: []wire.Rule{{Right: "admin"}}})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "not-found", "No such operation")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderServer, "fencelocktest")
		if s.loses(r) {
			mux.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		mux.ServeHTTP(w, r)
	})
}

// attempt claims or writes a guarded record.
func (s *Server) attempt(kind fencing.AttemptKind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		resource := r.PathValue("resource")
		token, err := fencing.ParseToken(r.Header.Get(wire.HeaderFencingToken))
		body, readErr := io.ReadAll(r.Body)
		switch {
		case r.Header.Get(wire.HeaderFencingToken) == "":
			refuse(w, http.StatusPreconditionRequired, "token-required", "Send the header Fencing-Token")
			return
		case err != nil || readErr != nil || r.Method == http.MethodPut && !json.Valid(body):
			refuse(w, http.StatusBadRequest, "invalid-request", "The token or the value is malformed")
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		record := s.records[resource]
		if record == nil {
			record = &wire.Record{Resource: resource, Value: json.RawMessage("null")}
			s.records[resource] = record
		}
		attempt := wire.Attempt{FencingToken: int64(token), HighestToken: record.HighestToken, Kind: string(kind), Accepted: int64(token) >= record.HighestToken, At: time.Now().UTC()}
		if attempt.Accepted {
			record.HighestToken = int64(token)
			if kind == fencing.KindWrite {
				record.Version++
				record.Value = json.RawMessage("null")
				if r.Method == http.MethodPut {
					record.Value = body
				}
			}
		}
		attempt.Version = record.Version
		s.history[resource] = append(s.history[resource], attempt)
		if !attempt.Accepted {
			details := &wire.StaleDetails{Presented: int64(token), HighestToken: attempt.HighestToken}
			problem(w, wire.Problem{Type: wire.ProblemPrefix + "stale-token", Title: "The fencing token is stale", Status: http.StatusPreconditionFailed, Resource: resource, StaleDetails: details})
			return
		}
		write(w, http.StatusOK, record)
	}
}

func (s *Server) readRecord(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[r.PathValue("resource")]
	if record == nil {
		refuse(w, http.StatusNotFound, "record-not-found", "The record was neither written nor claimed")
		return
	}
	write(w, http.StatusOK, record)
}

func (s *Server) listRecords(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := wire.RecordPage{Records: []wire.RecordSummary{}}
	for _, resource := range slices.Sorted(maps.Keys(s.records)) {
		if strings.HasPrefix(resource, r.URL.Query().Get("prefix")) {
			record := s.records[resource]
			page.Records = append(page.Records, wire.RecordSummary{Resource: resource, HighestToken: record.HighestToken, Version: record.Version})
		}
	}
	write(w, http.StatusOK, page)
}

func (s *Server) readHistory(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Query().Get("resource")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records[resource] == nil {
		refuse(w, http.StatusNotFound, "record-not-found", "The record was neither written nor claimed")
		return
	}
	attempts := slices.Clone(s.history[resource])
	slices.Reverse(attempts)
	write(w, http.StatusOK, wire.HistoryPage{Resource: resource, Attempts: attempts})
}

// events says that something has changed, and not what: a reader looks.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", wire.TypeEvents)
	w.WriteHeader(http.StatusOK)
	flusher, ok := w.(http.Flusher)
	if !ok {
		return
	}
	flusher.Flush()
	news := s.subscribe()
	defer s.unsubscribe(news)
	for n := 1; ; n++ {
		select {
		case <-news:
			_, _ = io.WriteString(w, "id: "+strconv.Itoa(n)+"\nevent: gap\ndata: {}\n\n")
			flusher.Flush()
		case <-r.Context().Done():
			return
		case <-s.stop:
			return
		}
	}
}

// subscribe gives a channel that has a value after a change.
func (s *Server) subscribe() chan struct{} {
	news := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers[news] = true
	return news
}

func (s *Server) unsubscribe(news chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, news)
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, "invalid-request", "The body is malformed: "+err.Error())
		return false
	}
	return true
}

func refuse(w http.ResponseWriter, status int, kind, title string) {
	problem(w, wire.Problem{Type: wire.ProblemPrefix + kind, Title: title, Status: status, Detail: "fencelocktest answers so"})
}

func problem(w http.ResponseWriter, p wire.Problem) {
	w.Header().Set("Content-Type", wire.TypeProblem)
	send(w, p.Status, p)
}

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", wire.TypeJSON)
	send(w, status, body)
}

// send writes JSON. A client that is gone gets none.
func send(w http.ResponseWriter, status int, body any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // a value of package wire
}
