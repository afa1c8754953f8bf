package node_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/lockcore/node"
)

func someSecret(epoch node.Epoch, fill byte) node.Secrets {
	var raw [node.MinSecretBytes]byte
	for i := range raw {
		raw[i] = fill
	}
	return node.NewSecrets(epoch, raw)
}

// The secrets of several nodes are merged to the same result in every order.
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

// A printed secret, or a value that contains secrets, shows only the ids of the keys.
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
