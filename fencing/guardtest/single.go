package guardtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

func neverSeen(t *testing.T, g fencing.Guard) {
	if _, err := g.Read(limited(t), "unknown"); !errors.Is(err, fencing.ErrNotFound) {
		t.Errorf("read gives %v, want ErrNotFound", err)
	}
	if _, err := g.History(limited(t), "unknown", 10); !errors.Is(err, fencing.ErrNotFound) {
		t.Errorf("history gives %v, want ErrNotFound", err)
	}
	if mark := mustHighest(t, g); mark != 0 {
		t.Errorf("highest mark of an empty guard is %d, want 0", mark)
	}
}

func claimMakesEmptyRecord(t *testing.T, g fencing.Guard) {
	want := fencing.Record{Resource: "r", Mark: 5}
	sameRecord(t, mustClaim(t, g, "r", 5), want)
	mustRead(t, g, want)
}

func writeReplaces(t *testing.T, g fencing.Guard) {
	sameRecord(t, mustWrite(t, g, "r", 5, `"one"`), fencing.Record{Resource: "r", Mark: 5, Value: json.RawMessage(`"one"`), Version: 1})
	want := fencing.Record{Resource: "r", Mark: 6, Value: json.RawMessage(`"two"`), Version: 2}
	sameRecord(t, mustWrite(t, g, "r", 6, `"two"`), want)
	mustRead(t, g, want)
	want.Mark = 8
	sameRecord(t, mustClaim(t, g, "r", 8), want)
}

func equalAccepted(t *testing.T, g fencing.Guard) {
	mustClaim(t, g, "r", 5)
	mustClaim(t, g, "r", 5)
	mustWrite(t, g, "r", 5, `1`)
	mustWrite(t, g, "r", 5, `2`)
	mustRead(t, g, fencing.Record{Resource: "r", Mark: 5, Value: json.RawMessage(`2`), Version: 2})
}

func staleWriteRefused(t *testing.T, g fencing.Guard) {
	mustWrite(t, g, "r", 34, `"new"`)
	mustBeStale(t, write(t, g, "r", 33, `"old"`), "r", 33, 34)
	mustRead(t, g, fencing.Record{Resource: "r", Mark: 34, Value: json.RawMessage(`"new"`), Version: 1})
	sameKinds(t, mustHistory(t, g, "r", 10), "write 33<34 v1 refused", "write 34>0 v1 accepted")
}

func staleClaimRefused(t *testing.T, g fencing.Guard) {
	mustClaim(t, g, "r", 34)
	mustBeStale(t, claim(t, g, "r", 1), "r", 1, 34)
	mustRead(t, g, fencing.Record{Resource: "r", Mark: 34})
	sameKinds(t, mustHistory(t, g, "r", 10), "claim 1<34 v0 refused", "claim 34>0 v0 accepted")
}

func claimRaises(t *testing.T, g fencing.Guard) {
	mustWrite(t, g, "r", 1, `1`)
	mustClaim(t, g, "r", 2)
	mustBeStale(t, write(t, g, "r", 1, `2`), "r", 1, 2)
	mustRead(t, g, fencing.Record{Resource: "r", Mark: 2, Value: json.RawMessage(`1`), Version: 1})
}

func readRaisesNothing(t *testing.T, g fencing.Guard) {
	mustClaim(t, g, "r", 3)
	before := mustHistory(t, g, "r", 10)
	mustRead(t, g, fencing.Record{Resource: "r", Mark: 3})
	mustClaim(t, g, "r", 3)
	if after := mustHistory(t, g, "r", 10); len(after) != len(before)+1 {
		t.Errorf("history grew from %d to %d lines by one claim and one read", len(before), len(after))
	}
}

// writeAloneLoses shows that checking only writes is not enough. That is why the protocol is
// claim-then-write.
func writeAloneLoses(t *testing.T, g fencing.Guard) {
	mustWrite(t, g, "r", 1, `[]`)
	// The holder of 2 reads [] and pauses; its lease ends. The holder of 3
	// reads [] too. The holder of 2 continues, before 3 has written anything.
	mustWrite(t, g, "r", 2, `["from 2"]`)
	mustWrite(t, g, "r", 3, `["from 3"]`)
	mustRead(t, g, fencing.Record{Resource: "r", Mark: 3, Value: json.RawMessage(`["from 3"]`), Version: 3})
}

func claimThenWrite(t *testing.T, g fencing.Guard) {
	mustWrite(t, g, "r", 1, `[]`)
	two := mustClaim(t, g, "r", 2)
	three := mustClaim(t, g, "r", 3)
	if string(two.Value) != `[]` || string(three.Value) != `[]` {
		t.Fatalf("claims read %s and %s, want []", two.Value, three.Value)
	}
	mustBeStale(t, write(t, g, "r", 2, `["from 2"]`), "r", 2, 3)
	mustWrite(t, g, "r", 3, `["from 3"]`)
	mustRead(t, g, fencing.Record{Resource: "r", Mark: 3, Value: json.RawMessage(`["from 3"]`), Version: 2})
}

func deleteKeepsTheMark(t *testing.T, g fencing.Guard) {
	mustWrite(t, g, "r", 5, `{"n":1}`)
	gone := fencing.Record{Resource: "r", Mark: 6, Version: 2}
	sameRecord(t, mustDelete(t, g, "r", 6), gone)
	mustRead(t, g, gone)
	mustBeStale(t, write(t, g, "r", 5, `1`), "r", 5, 6)
	sameKinds(t, mustHistory(t, g, "r", 10), "write 5<6 v2 refused", "write 6>5 v2 accepted", "write 5>0 v1 accepted")
	sameRecord(t, mustDelete(t, g, "r", 6), fencing.Record{Resource: "r", Mark: 6, Version: 3}) // repeated
	sameRecord(t, mustClaim(t, g, "r", 7), fencing.Record{Resource: "r", Mark: 7, Version: 3})
	sameRecord(t, mustWrite(t, g, "r", 7, `2`), fencing.Record{Resource: "r", Mark: 7, Version: 4, Value: json.RawMessage(`2`)})
	sameRecord(t, mustDelete(t, g, "unknown", 1), fencing.Record{Resource: "unknown", Mark: 1, Version: 1})
}

func staleDeleteRefused(t *testing.T, g fencing.Guard) {
	mustWrite(t, g, "r", 5, `1`)
	_, err := g.Delete(limited(t), "r", 4)
	mustBeStale(t, err, "r", 4, 5)
	mustRead(t, g, fencing.Record{Resource: "r", Mark: 5, Version: 1, Value: json.RawMessage(`1`)})
}

// usageCounts makes no assumption about how a storage compresses values.
func usageCounts(t *testing.T, g fencing.Guard) {
	before := mustUsage(t, g)
	want := func(records int64, what string, right func(bytes int64) bool) int64 {
		t.Helper()
		usage := mustUsage(t, g)
		bytes := usage.Bytes - before.Bytes
		if usage.Records-before.Records != records || !right(bytes) {
			t.Errorf("%s: %+v, before all %+v", what, usage, before)
		}
		return bytes
	}
	mustClaim(t, g, "claimed", 1)
	want(1, "a claim", func(bytes int64) bool { return bytes == 0 })
	mustWrite(t, g, "a", 5, `"small"`)
	small := want(2, "a write", func(bytes int64) bool { return bytes > 0 })
	_ = write(t, g, "a", 4, `"a stale write is not kept"`)
	want(2, "a stale write", func(bytes int64) bool { return bytes == small })
	mustWrite(t, g, "a", 6, `"what is longer than before"`)
	want(2, "a longer one", func(bytes int64) bool { return bytes > small })
	mustWrite(t, g, "b", 7, `1`)
	mustDelete(t, g, "a", 8)
	mustDelete(t, g, "b", 8)
	want(3, "both are deleted", func(bytes int64) bool { return bytes == 0 })
}

func listsPrefix(t *testing.T, g fencing.Guard) {
	const wide, last = "a/\u00e9", "a/\U0010ffff\U0010ffff"
	for i, resource := range []string{"b", "a/2", "a/10", "a", wide, "a/B", "a0", last, "a/b"} {
		mustClaim(t, g, resource, fencing.Token(10+i))
	}
	mustWrite(t, g, "a/2", 20, `"a value"`)
	_ = write(t, g, "a/2", 19, `"stale"`)
	list := func(prefix, after string, limit int) (names []string) {
		t.Helper()
		records, err := g.Records(limited(t), prefix, after, limit)
		if err != nil {
			t.Fatalf("list %q after %q: %v", prefix, after, err)
		}
		for _, r := range records {
			names = append(names, r.Resource)
			if r.Resource == "a/2" && (r.Mark != 20 || r.Version != 1 || r.Value != nil) {
				t.Errorf("listed %s, want mark 20, version 1 and no value", show(r))
			}
		}
		return names
	}
	all := []string{"a", "a/10", "a/2", "a/B", "a/b", wide, last, "a0", "b"}
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"", "", 100, all},
		{"", "a/10", 3, []string{"a/2", "a/B", "a/b"}},
		{"a/", "", 100, all[1:7]},
		{"a/", "", 2, []string{"a/10", "a/2"}},
		{"a/", "a/2", 100, all[3:7]},
		{"a/", last, 100, nil},
		{"a/", "b", 100, nil},
		{"a/", "a", 1, []string{"a/10"}}, // after a resource that does not begin with the prefix
		{"c", "", 100, nil},
		{"", "", 0, nil},
	} {
		if got := list(c.prefix, c.after, c.limit); !slices.Equal(got, c.want) {
			t.Errorf("prefix %q after %q, at most %d: %q, want %q", c.prefix, c.after, c.limit, got, c.want)
		}
	}
}

func historyTells(t *testing.T, g fencing.Guard) {
	started := time.Now().Add(-time.Minute) // another machine's clock may be off
	mustClaim(t, g, "r", 10)
	mustWrite(t, g, "r", 10, `1`)
	mustBeStale(t, write(t, g, "r", 9, `2`), "r", 9, 10)
	mustWrite(t, g, "r", 12, `3`)
	mustBeStale(t, claim(t, g, "r", 11), "r", 11, 12)
	attempts := mustHistory(t, g, "r", 10)
	sameKinds(t, attempts,
		"claim 11<12 v2 refused",
		"write 12>10 v2 accepted",
		"write 9<10 v1 refused",
		"write 10>10 v1 accepted",
		"claim 10>0 v0 accepted")
	for i, a := range attempts {
		if a.At.Before(started) || a.At.After(time.Now().Add(time.Minute)) {
			t.Errorf("attempt %d is dated %s", i, a.At)
		}
		if i > 0 && a.At.After(attempts[i-1].At) {
			t.Errorf("attempt %d is newer than the one before it", i)
		}
	}
}

func sameKinds(t *testing.T, attempts []fencing.Attempt, want ...string) {
	t.Helper()
	got := make([]string, len(attempts))
	for i, a := range attempts {
		sign, verdict := "<", "refused"
		if a.Token >= a.Highest {
			sign = ">"
		}
		if a.Accepted {
			verdict = "accepted"
		}
		got[i] = fmt.Sprintf("%s %d%s%d v%d %s", a.Kind, a.Token, sign, a.Highest, a.Version, verdict)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("history is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// attemptsMade is more than the number of attempts that any guard keeps for one resource.
const attemptsMade = 1200

func historyBounded(t *testing.T, g fencing.Guard) {
	for i := range fencing.Token(attemptsMade) {
		mustClaim(t, g, "r", i+1)
	}
	attempts := mustHistory(t, g, "r", attemptsMade)
	if len(attempts) < 10 || len(attempts) >= attemptsMade {
		t.Fatalf("%d attempts are kept of %d made, want a bounded number, and no less than 10", len(attempts), attemptsMade)
	}
	for i, a := range attempts {
		if want := fencing.Token(attemptsMade - i); a.Token != want {
			t.Fatalf("attempt %d has token %d, want %d", i, a.Token, want)
		}
	}
}

func historyLimit(t *testing.T, g fencing.Guard) {
	for i := range fencing.Token(5) {
		mustClaim(t, g, "r", i+1)
	}
	for _, limit := range []int{1, 3, 5} {
		if attempts := mustHistory(t, g, "r", limit); len(attempts) != limit || attempts[0].Token != 5 {
			t.Errorf("limit %d gives %d attempts: %v", limit, len(attempts), attempts)
		}
	}
	if attempts := mustHistory(t, g, "r", 0); len(attempts) != 0 {
		t.Errorf("limit 0 gives %d attempts", len(attempts))
	}
}

func resourcesApart(t *testing.T, g fencing.Guard) {
	mustWrite(t, g, "a", 50, `"a"`)
	mustWrite(t, g, "b", 2, `"b"`)
	mustBeStale(t, write(t, g, "b", 1, `0`), "b", 1, 2)
	mustRead(t, g, fencing.Record{Resource: "a", Mark: 50, Value: json.RawMessage(`"a"`), Version: 1})
	mustRead(t, g, fencing.Record{Resource: "b", Mark: 2, Value: json.RawMessage(`"b"`), Version: 1})
	sameKinds(t, mustHistory(t, g, "a", 10), "write 50>0 v1 accepted")
}

func oddResources(t *testing.T, g fencing.Guard) {
	resources := []string{
		"/", "a", "a/", "a/b", "a/b/", "a b", " ", "A", "ä", "a\u0308", "日本/東京", "🔒", "'; DROP TABLE marks; --",
		`"quoted"`, `back\slash`, "%s%d", "$1", "a%2Fb", "\u00a0", "\U0010ffff", "null",
		strings.Repeat("x", fencing.MaxResourceBytes), strings.Repeat("x", fencing.MaxResourceBytes-1) + "y",
		strings.Repeat("é", fencing.MaxResourceBytes/2),
	}
	for i, r := range resources {
		mustWrite(t, g, r, fencing.Token(i+1), fmt.Sprintf(`{"n":%d}`, i))
	}
	for i, r := range resources {
		mustRead(t, g, fencing.Record{Resource: r, Mark: fencing.Token(i + 1), Value: fmt.Appendf(nil, `{"n":%d}`, i), Version: 1})
		if attempts := mustHistory(t, g, r, 10); len(attempts) != 1 {
			t.Errorf("%q has %d attempts in its history, want 1", r, len(attempts))
		}
	}
}

func malformedInput(t *testing.T, g fencing.Guard) {
	refused := func(want error, resource string, token fencing.Token, value string) {
		t.Helper()
		for what, err := range map[string]error{"claim": claim(t, g, resource, token), "write": write(t, g, resource, token, value)} {
			if !errors.Is(err, want) {
				t.Errorf("%s of resource %q with token %d gives %v, want %v", what, resource, token, err, want)
			}
		}
	}
	for _, r := range []string{"", strings.Repeat("x", fencing.MaxResourceBytes+1), "a\x00b", "a\nb", "\u007f", "\u0085", "\xff"} {
		refused(fencing.ErrMalformedResource, r, 1, `1`)
	}
	for _, token := range []fencing.Token{0, -1, fencing.MaxToken + 1} {
		refused(fencing.ErrMalformedToken, "r", token, `1`)
	}
	for _, value := range []string{``, `{`, `1 2`, "nul"} {
		if err := write(t, g, "r", 1, value); !errors.Is(err, fencing.ErrMalformedValue) {
			t.Errorf("write of value %q gives %v, want ErrMalformedValue", value, err)
		}
	}
	if _, err := g.Read(limited(t), "r"); !errors.Is(err, fencing.ErrNotFound) {
		t.Errorf("malformed attempts left a trace: read gives %v, want ErrNotFound", err)
	}
}

func values(t *testing.T, g fencing.Guard) {
	big := `"` + strings.Repeat("0123456789abcdef", 1<<16) + `"` // 1 MiB
	for i, value := range []string{
		`null`, `true`, `0`, `-1.5e300`, `123456789012345678901234567890`, `""`, `"\u0000"`, `"🔒"`, `[]`, `{}`,
		`{"b":1,"a":2,"b":3}`, ` { "spaced" : [ 1 , 2 ] } `, big, strings.Repeat("[", 500) + strings.Repeat("]", 500),
	} {
		token := fencing.Token(i + 1)
		mustWrite(t, g, "r", token, value)
		want := fencing.Record{Resource: "r", Mark: token, Value: json.RawMessage(value), Version: int64(i + 1)}
		mustRead(t, g, want)
		sameRecord(t, mustClaim(t, g, "r", token), want)
	}
}

func highestMark(t *testing.T, g fencing.Guard) {
	mustClaim(t, g, "a", 3)
	mustWrite(t, g, "b", 1000, `1`)
	mustClaim(t, g, "c", 7)
	if mark := mustHighest(t, g); mark != 1000 {
		t.Errorf("highest mark is %d, want 1000", mark)
	}
	mustClaim(t, g, "c", fencing.MaxToken)
	mustBeStale(t, claim(t, g, "c", fencing.MaxToken-1), "c", fencing.MaxToken-1, fencing.MaxToken)
	if mark := mustHighest(t, g); mark != fencing.MaxToken {
		t.Errorf("highest mark is %d, want %d", mark, fencing.MaxToken)
	}
}

func cancelledContext(t *testing.T, g fencing.Guard) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, claimErr := g.Claim(ctx, "r", 5)
	_, writeErr := g.Write(ctx, "r", 5, json.RawMessage(`1`))
	_, readErr := g.Read(ctx, "r")
	_, historyErr := g.History(ctx, "r", 1)
	_, highestErr := g.HighestMark(ctx)
	_, deleteErr := g.Delete(ctx, "r", 5)
	_, usageErr := g.Usage(ctx)
	for name, err := range map[string]error{
		"claim": claimErr, "write": writeErr, "read": readErr, "history": historyErr, "highest mark": highestErr,
		"delete": deleteErr, "usage": usageErr,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context gives %v, want context.Canceled", name, err)
		}
		if errors.Is(err, fencing.ErrGuardUnavailable) {
			t.Errorf("%s with a cancelled context blames the guard: %v", name, err)
		}
	}
	if _, err := g.Read(limited(t), "r"); !errors.Is(err, fencing.ErrNotFound) {
		t.Errorf("a cancelled claim took effect: read gives %v, want ErrNotFound", err)
	}
}
