package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func tokenHash(secret string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(secret))) }

func withToken(p *Policy, secret string) *Identity {
	return p.find(&credentials{token: hashToken(secret)})
}

func mustParse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse(text + "\nend\n")
	if err != nil {
		t.Fatal(err)
	}
	p.inherit(&Keeper{})
	return p
}

func TestTheLongestPrefixWins(t *testing.T) {
	p := mustParse(t, "# people\n\n  w token="+tokenHash("s")+" read=* acquire=orders/ none=orders/secret/ admin=orders/secret/mine acquire=a%20b/ read=%2A\r\n")
	who := withToken(p, "s")
	if who == nil || who.Name() != "w" {
		t.Fatalf("found %+v", who)
	}
	for resource, right := range map[string]Right{
		"x": Read, "orders": Read, "orders/": Acquire, "orders/1": Acquire, "orders/secret/": None, "orders/secret/1": None,
		"orders/secret/mine": Admin, "orders/secret/mine/1": Admin, "a b/1": Acquire, "a b": Read, "*": Read, "Orders/1": Read,
	} {
		for asked := Read; asked <= Admin; asked++ {
			if got := who.May(asked, resource); got != (asked <= right) {
				t.Errorf("may %s %q: %t, with %s", asked, resource, got, right)
			}
		}
	}
	if withToken(p, "S") != nil || withToken(p, "") != nil || withToken(p, strings.Repeat("s", 300)) != nil {
		t.Error("a wrong token is somebody's")
	}
}

func TestDeniedByDefault(t *testing.T) {
	p := mustParse(t, "w token="+tokenHash("s")+" acquire=orders/\nidle cert=c")
	var nobody *Identity
	if withToken(p, "s").May(Read, "x") || p.certs["c"].May(Read, "x") || nobody.May(None, "x") || nobody.MayAll(None) {
		t.Error("allowed without a rule")
	}
}

func TestMayAll(t *testing.T) {
	for rules, want := range map[string]bool{
		"read=*": true, "admin=*": true, "read=* acquire=a": true, "read=* none=a": false, "read=a": false, "none=*": false, "": false,
	} {
		if got := mustParse(t, "w cert=c "+rules).certs["c"].MayAll(Read); got != want {
			t.Errorf("%q: %t", rules, got)
		}
	}
}

func TestBadLinesAreNamedWithoutWhatTheyHold(t *testing.T) {
	good := tokenHash("s")
	for line, part := range map[string]string{
		"w":                                 "has no token=",
		"w read=*":                          "has no token=",
		"w token=hunter2":                   "does not belong in the file",
		"w token=sha256:hunter2":            "does not belong in the file",
		"w token=sha256:abcd":               "64 hexadecimal digits",
		"w hunter2":                         "a field must be one of",
		"w hunter2=1":                       "a field must be one of",
		"w cert=c write=hunter2":            "a field must be one of",
		"w cert=":                           "cert= must name",
		"w jwt=%zz":                         "jwt= must name",
		"w cert=d" + " cert=d":              "occurs twice",
		"w cert=c read=":                    "read= must be the beginning",
		"w cert=c read=%zz":                 "read= must be the beginning",
		"w cert=c read=a acquire=a":         "same prefix",
		"w cert=c requests=0":               "requests= must be",
		"w cert=c requests=NaN":             "requests= must be",
		"w cert=c requests=-1":              "requests= must be",
		"w cert=c waiters=0":                "waiters= must be",
		"w cert=c held=1.5":                 "held= must be",
		"näme cert=c":                       "the name must be",
		"end cert=c":                        "the name must be",
		strings.Repeat("n", 65) + " cert=c": "the name must be",
		"w cert=c read=" + strings.Repeat("x", 257): "at most 256 bytes",
	} {
		_, err := Parse("ok token=" + good + "\n\n" + line + "\nalso-ok cert=other\nend\n")
		switch {
		case err == nil:
			t.Errorf("%q is accepted", line)
		case !strings.HasPrefix(err.Error(), "line 3: ") || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n"):
			t.Errorf("%q: %v", line, err)
		case strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%q: the error shows what the line holds: %v", line, err)
		}
	}
	for text, part := range map[string]string{
		"a token=" + good + "\nb token=" + good: "line 2: the token occurs twice",
		"a cert=c\nb cert=c":                    "line 2: a cert= occurs twice",
		"a cert=c\na cert=d":                    "line 2: the name a occurs twice",
	} {
		if _, err := Parse(text + "\nend\n"); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestAFileThatIsCutOff is refused wherever it was cut: a prefix of a file may
// give more than the file, when what it lacks is a none=.
func TestAFileThatIsCutOff(t *testing.T) {
	const whole = "# people\nw cert=c acquire=* none=secret/\nending cert=d\nend\n"
	for size := range len(whole) {
		if _, err := Parse(whole[:size]); err == nil {
			t.Errorf("%q is accepted", whole[:size])
		}
	}
	for text, part := range map[string]string{
		whole: "", whole + "\n# edited by hand\n": "", "end\r\n": "",
		"w cert=c":                     "the last line must be end",
		"w cert=c\nend":                "must be end",
		whole + "x cert=d acquire=*\n": "line 5: nothing but comments may follow the line end",
		whole + "end\n":                "line 5: nothing but comments",
	} {
		if _, err := Parse(text); (err == nil) != (part == "") || err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAppend(t *testing.T) {
	for _, c := range [][3]string{
		{"", "a cert=a", "a cert=a\nend\n"},
		{"# x\na cert=a\n end \n# y", "b cert=b", "# x\na cert=a\nb cert=b\n end \n# y"},
	} {
		if got, err := Append(c[0], c[1]); err != nil || got != c[2] {
			t.Errorf("%q: %q, %v", c[0], got, err)
		}
	}
	for _, text := range []string{"a cert=a\n", "b cert=c\nend\n", "nonsense\nend\n"} {
		if got, err := Append(text, "b cert=b"); err == nil {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// TestReadingAgainDuringRequests is for the race detector: callers are judged by
// one version of the file or the other, and never by anything in between.
func TestReadingAgainDuringRequests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access")
	line := "w token=" + tokenHash("s") + " requests=1000000 waiters=1000 held=1000 "
	write := func(rules string) {
		if err := os.WriteFile(path, []byte(line+rules+"\nend\n"), 0o600); err != nil {
			t.Error(err)
		}
	}
	write("acquire=a/ none=b/")
	k, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer s")
			for {
				select {
				case <-stop:
					return
				default:
				}
				who, err := k.Identify(r)
				if err != nil || who.May(Acquire, "a/1") == who.May(Acquire, "b/1") {
					t.Errorf("%v, %v", who, err)
					return
				}
				if err := who.Request(); err != nil && !errors.Is(err, ErrRequestLimit) {
					t.Error(err)
				}
			}
		})
	}
	for n := range 100 {
		write([]string{"none=a/ acquire=b/", "acquire=a/ none=b/"}[n%2])
		if err := k.Load(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	callers.Wait()
}

func FuzzParse(f *testing.F) {
	f.Add("w token=" + tokenHash("s") + " read=* acquire=a%20b requests=1 waiters=2 held=3\nend\n")
	f.Add("a cert=c\n# x\nb jwt=d none=*\nend\n# y")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err == nil && len(p.tokens)+len(p.certs)+len(p.claims) < len(p.names) {
			t.Errorf("%q: a name that nobody can be", text)
		}
	})
}

func TestABrokenFileKeepsTheOneBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text+"\nend\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(path, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	write("w token=" + tokenHash("s") + " read=* requests=0.001 waiters=1")
	k, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	identify := func(secret string) (*Identity, error) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		return k.Identify(r)
	}
	who, err := identify("s")
	if err != nil {
		t.Fatal(err)
	}
	if err := who.Request(); err != nil {
		t.Fatal(err)
	}

	write("w token=nonsense")
	if err := k.Load(); err == nil {
		t.Error("a broken file is accepted")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := k.Load(); err == nil {
		t.Error("a missing file is accepted")
	}
	if again, err := identify("s"); err != nil || again != who {
		t.Errorf("after broken files: %v, %v", again, err)
	}

	// Another token and other rules; what was used continues being counted.
	write("w token=" + tokenHash("t") + " acquire=* requests=0.001 waiters=1 held=7")
	if err := k.Load(); err != nil {
		t.Fatal(err)
	}
	if _, err := identify("s"); !errors.Is(err, ErrBadCredentials) {
		t.Errorf("the old token after the change: %v", err)
	}
	next, err := identify("t")
	if err != nil || !next.May(Acquire, "x") {
		t.Fatalf("the new token: %v, %v", next, err)
	}
	if err := next.Request(); !errors.Is(err, ErrRequestLimit) {
		t.Errorf("reading the file again gives another request: %v", err)
	}
	if who.MaxHeld() != 0 || next.MaxHeld() != 7 {
		t.Errorf("%d and then %d leases may be held", who.MaxHeld(), next.MaxHeld())
	}
}

func TestLimits(t *testing.T) {
	w := mustParse(t, "w cert=c waiters=1 held=2").certs["c"]
	if limit := TooManyWaiters(w.MaxWaiters()); !errors.Is(limit, ErrWaiterLimit) || limit.Max != 1 || limit.Retry <= 0 {
		t.Errorf("limit %+v", limit)
	}
	if limit := w.TooManyHeld(); !errors.Is(limit, ErrLeaseLimit) || limit.Max != 2 || limit.Retry <= 0 {
		t.Errorf("limit %+v", limit)
	}
	free := mustParse(t, "w cert=c").certs["c"]
	for range 1000 {
		if err := free.Request(); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkIdentify(b *testing.B) {
	path := filepath.Join(b.TempDir(), "access")
	var text strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&text, "w%d token=%s read=*\n", i, tokenHash(fmt.Sprintf("secret-%d", i)))
	}
	text.WriteString("end\n")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	k, err := Open(path, nil)
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer secret-5000")
	b.ReportAllocs()
	for b.Loop() {
		if who, err := k.Identify(r); err != nil || !who.May(Read, "orders/42") {
			b.Fatal(err)
		}
	}
}
