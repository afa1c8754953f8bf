package redlock

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

func someSecret(epoch node.Epoch, fill byte) node.Secrets {
	var raw [node.MinSecretBytes]byte
	for i := range raw {
		raw[i] = fill
	}
	return node.NewSecrets(epoch, raw)
}

// Nodes' secrets come to the same, in whatever order they are merged.
func TestMergeSecrets(t *testing.T) {
	one, two, three := someSecret(1, 1), someSecret(2, 2), someSecret(3, 3)
	newest := three + "," + two
	for _, c := range []struct {
		of   []node.Secrets
		want node.Secrets
	}{
		{nil, ""},
		{[]node.Secrets{"", one, ""}, one},
		{[]node.Secrets{one, one}, one},
		{[]node.Secrets{one, two}, two + "," + one},
		{[]node.Secrets{two + "," + one, three}, newest},
		{[]node.Secrets{three, two + "," + one}, newest},
		{[]node.Secrets{newest, one}, newest},
		{[]node.Secrets{"nonsense", two, "5:abcd", "9:" + node.Secrets(strings.Repeat("zz", 32)), node.Secrets(fmt.Sprint(int64(node.MaxEpoch)+1) + ":" + strings.Repeat("ab", 32))}, two},
	} {
		if got := node.MergeSecrets(c.of...); got != c.want {
			t.Errorf("%q comes to %q, want %q", c.of, string(got), string(c.want))
		}
	}
}

// What prints secrets, or what has some in it, shows the ids of their keys alone.
func TestSecretsAreNotPrinted(t *testing.T) {
	secret := someSecret(7, 0x5e)
	seen := node.Observation{Incarnation: "i", Marks: node.Marks{Secrets: secret}}
	admission := node.Admission{Secrets: secret}
	var log strings.Builder
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	logger.Info("seen", "observation", seen, "secrets", secret, "admission", fmt.Sprintf("%+v", admission))
	slog.New(slog.NewTextHandler(&log, nil)).Info("seen", "observation", seen, "secrets", secret)
	raw, err := json.Marshal(map[string]any{"seen": seen, "secret": secret})
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{
		"%v": fmt.Sprintf("%v %v", seen, secret), "%+v": fmt.Sprintf("%+v %+v", seen, &admission), "%#v": fmt.Sprintf("%#v", secret), "%s": fmt.Sprintf("%s %q", secret, secret),
		"JSON": string(raw), "a log": log.String(),
	}
	for how, text := range texts {
		if strings.Contains(strings.ToLower(text), "5e5e5e") {
			t.Errorf("%s shows it: %s", how, text)
		}
		if !strings.Contains(text, "secrets(") {
			t.Errorf("%s shows nothing: %s", how, text)
		}
	}
}

// knowing has the server see nodes with these secrets.
func knowing(m *membership, now time.Time, nodes ...node.Secrets) {
	for i, secrets := range nodes {
		m.seen.see(i, node.Observation{Admitted: true, Cluster: m.cluster, Epoch: 1, Marks: node.Marks{Secrets: secrets}}, nil, now)
	}
	m.adoptSecrets(now)
}

// A secret opens lease ids as soon as one node has it, and seals once a quorum
// has had it for so long that every server which is in touch with one knows it.
func TestWhichSecretSeals(t *testing.T) {
	l, err := New(Config{}, fakes(3))
	if err != nil {
		t.Fatal(err)
	}
	m, now := l.sets[0].members, time.Now()
	one, two, three := someSecret(1, 1), someSecret(2, 2), someSecret(3, 3)
	keyID := func(s node.Secrets) [node.KeyIDBytes]byte { raw := s.List()[0].Raw; return newKey(raw[:]).id }
	uses := func(what string, sealing node.Secrets, opening ...node.Secrets) {
		t.Helper()
		keys := l.sets[0].keysNow()
		if keys == nil || len(keys.keys) != 1+len(opening) || keys.keys[0].id != keyID(sealing) {
			t.Fatalf("%s: other keys", what)
		}
		for _, s := range opening {
			if id := keyID(s); keys.named(id[:]) == nil {
				t.Errorf("%s: %s does not open", what, s)
			}
		}
	}
	knowing(m, now, one)
	if l.sets[0].keysNow() != nil {
		t.Error("one node of three is believed")
	}
	knowing(m, now, one, one)
	uses("the first secret, on a quorum", one)
	knowing(m, now, two+","+one, one, one)
	uses("a new one on one node", one, two)
	now = now.Add(time.Hour)
	knowing(m, now, two+","+one, one, one)
	uses("on one node for an hour", one, two)
	knowing(m, now, two+","+one, two+","+one, one)
	uses("on a quorum just now", one, two)
	now = now.Add(m.cfg.inTouch() - time.Millisecond)
	knowing(m, now, two+","+one, two+","+one, one)
	uses("not for long enough", one, two)
	now = now.Add(time.Millisecond)
	knowing(m, now, two+","+one, two+","+one, one)
	uses("for long enough", two, one)
	knowing(m, now, two+","+one, three+","+two, two)
	uses("the next one", two, three)
	m.seen.see(0, node.Observation{}, errFake, now) // as it was last seen
	knowing(m, now)
	uses("a node that does not answer", two, three)
	knowing(m, now, "", "", "")
	uses("no node has any more", two, three)
}
