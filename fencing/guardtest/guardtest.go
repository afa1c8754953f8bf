// Package guardtest is the conformance suite that every fencing.Guard passes.
package guardtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// patience is the time limit of each test, so that a test of a hanging guard fails.
const patience = 2 * time.Minute

// Run runs the suite. Each call of open returns a guard without records, which is closed at the end of the
// test.
func Run(t *testing.T, open func(t *testing.T) fencing.Guard) {
	scenarios := []struct {
		name string
		run  func(t *testing.T, g fencing.Guard)
	}{
		{"a resource never seen is not found", neverSeen},
		{"a claim makes an empty record", claimMakesEmptyRecord},
		{"a write replaces the value", writeReplaces},
		{"an equal token is accepted", equalAccepted},
		{"a stale write is refused and changes nothing", staleWriteRefused},
		{"a stale claim is refused and changes nothing", staleClaimRefused},
		{"a claim raises the mark against writes", claimRaises},
		{"a read raises nothing", readRaisesNothing},
		{"write alone loses an update", writeAloneLoses},
		{"claim then write loses none", claimThenWrite},
		{"a delete keeps the mark", deleteKeepsTheMark},
		{"a stale delete is refused and changes nothing", staleDeleteRefused},
		{"usage counts records and their values", usageCounts},
		{"a list has the records of a prefix, in order", listsPrefix},
		{"history tells every attempt, newest first", historyTells},
		{"history is bounded and keeps the newest", historyBounded},
		{"history honours its limit", historyLimit},
		{"resources do not touch each other", resourcesApart},
		{"odd resources", oddResources},
		{"malformed input changes nothing", malformedInput},
		{"values come back as they were", values},
		{"highest mark over all resources", highestMark},
		{"a cancelled context", cancelledContext},
		{"many holders, one mark", manyHolders},
		{"many holders, no lost update", manyIncrements},
		{"many first claims of one resource", firstClaimsRace},
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { s.run(t, open(t)) })
	}
}

// RunDurable runs the suite, and then tests that need to open a guard again. reopen closes the storage of a
// guard that open returned, and opens it again.
func RunDurable(t *testing.T, open func(t *testing.T) fencing.Guard, reopen func(t *testing.T, g fencing.Guard) fencing.Guard) {
	Run(t, open)
	t.Run("opened again, it knows everything", func(t *testing.T) {
		g := open(t)
		mustWrite(t, g, "kept", 7, `{"n":1}`)
		mustBeStale(t, write(t, g, "kept", 6, `0`), "kept", 6, 7)
		mustClaim(t, g, "claimed", 9)
		mustWrite(t, g, "deleted", 8, `"long"`)
		mustDelete(t, g, "deleted", 9)
		before, used := mustHistory(t, g, "kept", 10), mustUsage(t, g)

		g = reopen(t, g)
		mustRead(t, g, fencing.Record{Resource: "kept", Mark: 7, Value: json.RawMessage(`{"n":1}`), Version: 1})
		mustRead(t, g, fencing.Record{Resource: "claimed", Mark: 9})
		mustRead(t, g, fencing.Record{Resource: "deleted", Mark: 9, Version: 2})
		mustBeStale(t, write(t, g, "deleted", 8, `1`), "deleted", 8, 9)
		if now := mustUsage(t, g); now.Records != used.Records || now.Bytes != used.Bytes {
			t.Errorf("it kept %+v, and after opening again %+v", used, now)
		}
		mustBeStale(t, claim(t, g, "claimed", 8), "claimed", 8, 9)
		if after := mustHistory(t, g, "kept", 10); !sameAttempts(before, after) {
			t.Errorf("history was %v, after opening again it is %v", before, after)
		}
		if mark := mustHighest(t, g); mark != 9 {
			t.Errorf("highest mark is %d after opening again, want 9", mark)
		}
	})
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func write(t *testing.T, g fencing.Guard, resource string, token fencing.Token, value string) error {
	t.Helper()
	_, err := g.Write(limited(t), resource, token, json.RawMessage(value))
	return err
}

func claim(t *testing.T, g fencing.Guard, resource string, token fencing.Token) error {
	t.Helper()
	_, err := g.Claim(limited(t), resource, token)
	return err
}

func mustWrite(t *testing.T, g fencing.Guard, resource string, token fencing.Token, value string) fencing.Record {
	t.Helper()
	record, err := g.Write(limited(t), resource, token, json.RawMessage(value))
	if err != nil {
		t.Fatalf("write %s with token %d: %v", resource, token, err)
	}
	return record
}

func mustDelete(t *testing.T, g fencing.Guard, resource string, token fencing.Token) fencing.Record {
	t.Helper()
	r, err := g.Delete(limited(t), resource, token)
	if err != nil {
		t.Fatalf("delete of %q with token %d: %v", resource, token, err)
	}
	return r
}

func mustUsage(t *testing.T, g fencing.Guard) fencing.Usage {
	t.Helper()
	usage, err := g.Usage(limited(t))
	if err != nil {
		t.Fatalf("usage: %v", err)
	}
	return usage
}

func mustClaim(t *testing.T, g fencing.Guard, resource string, token fencing.Token) fencing.Record {
	t.Helper()
	record, err := g.Claim(limited(t), resource, token)
	if err != nil {
		t.Fatalf("claim %s with token %d: %v", resource, token, err)
	}
	return record
}

func mustRead(t *testing.T, g fencing.Guard, want fencing.Record) {
	t.Helper()
	got, err := g.Read(limited(t), want.Resource)
	if err != nil {
		t.Fatalf("read %s: %v", want.Resource, err)
	}
	sameRecord(t, got, want)
}

func mustHistory(t *testing.T, g fencing.Guard, resource string, limit int) []fencing.Attempt {
	t.Helper()
	attempts, err := g.History(limited(t), resource, limit)
	if err != nil {
		t.Fatalf("history of %s: %v", resource, err)
	}
	return attempts
}

func mustHighest(t *testing.T, g fencing.Guard) fencing.Token {
	t.Helper()
	mark, err := g.HighestMark(limited(t))
	if err != nil {
		t.Fatalf("highest mark: %v", err)
	}
	return mark
}

func mustBeStale(t *testing.T, err error, resource string, presented, highest fencing.Token) {
	t.Helper()
	var stale *fencing.StaleTokenError
	if !errors.As(err, &stale) {
		t.Fatalf("token %d on %s at mark %d: got %v, want a *StaleTokenError", presented, resource, highest, err)
	}
	if want := (fencing.StaleTokenError{Resource: resource, Presented: presented, Highest: highest}); *stale != want {
		t.Errorf("refusal says %+v, want %+v", *stale, want)
	}
}

func sameRecord(t *testing.T, got, want fencing.Record) {
	t.Helper()
	if got.Resource != want.Resource || got.Mark != want.Mark || got.Version != want.Version || string(got.Value) != string(want.Value) {
		t.Errorf("record is %s, want %s", show(got), show(want))
	}
	if (got.Value == nil) != (want.Value == nil) {
		t.Errorf("value is nil: %t, want %t", got.Value == nil, want.Value == nil)
	}
}

func show(r fencing.Record) string {
	const most = 300
	return fmt.Sprintf("{%s mark %d version %d value %s}", r.Resource, r.Mark, r.Version, r.Value[:min(len(r.Value), most)])
}

func sameAttempts(a, b []fencing.Attempt) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		if !x.At.Equal(y.At) {
			return false
		}
		x.At, y.At = time.Time{}, time.Time{}
		if x != y {
			return false
		}
	}
	return true
}
