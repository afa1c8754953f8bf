package redlock

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

var update = flag.Bool("update", false, "write testdata/texts.json again")

// texts are what clients and nodes store for one version and present to another.
type texts struct {
	LeaseID   string `json:"lease_id"`
	Bundle    string `json:"lease_id_of_several"`
	Cursor    string `json:"cursor"` // has a random nonce
	Owner     string `json:"owner_of_idempotency_key"`
	Ticket    string `json:"ticket_of_idempotency_key"`
	Slot      string `json:"slot"`
	Meta      string `json:"meta"`
	BareMeta  string `json:"meta_without_holder"`
	Cluster   string `json:"cluster"`
	Secrets   string `json:"secrets"`
	NoLease   string `json:"owner_of_no_lease"`
	WholeTime int64  `json:"floor_at_2026"` // where tokens begin
}

const (
	caller = "token orders"
	use    = caller + "\x00orders/"
)

var storedAt = time.UnixMilli(1_790_000_000_000)

func storedParts() []keyring.LeaseID {
	one := keyring.LeaseID{
		Owner: "AQIDBAUGBwgJCgsMDQ4PEBESExQ", Token: 1_790_000_000_000_123, Acquired: storedAt, Resource: "orders/42 ü",
		Terms: keyring.Terms{MinHold: 5 * time.Second, MaxHold: time.Hour},
	}
	other := one
	other.Owner, other.Token, other.Resource = "FBMSERAPDg0MCwoJCAcGBQQDAgE", fencing.MaxToken, "orders#slot2"
	return []keyring.LeaseID{one, other}
}

// storedPlace is a position of a listing; package sets reads it.
var storedPlace = "1 2 b3JkZXJzLzQx" + strings.Repeat("\x00", 496)

type named struct {
	node.Node
	name string
}

func (n named) Name() string { return n.name }

func written(keys *keyring.Ring) texts {
	cluster := membership.ClusterOf([]node.Node{named{name: "redis-2:6379/0"}, named{name: "redis-1:6379/0"}, named{name: "redis-3:6379/0"}})
	return texts{
		LeaseID: keys.SealLease(caller, storedParts()[:1]), Bundle: keys.SealLease(caller, storedParts()),
		Cursor: keys.SealCursor(use, storedPlace),
		Owner:  keys.Owners(caller, "a key")[0], Ticket: keys.TicketID(caller, "a key", "orders/42"),
		Slot:     lockcore.SlotName("orders", 2),
		Meta:     meta{acquired: storedAt, holder: "worker 7 ü", metadata: json.RawMessage(`{"a":[1]}`)}.String(),
		BareMeta: meta{acquired: storedAt}.String(),
		Cluster:  cluster.Hash, Secrets: string(node.NewSecrets(1000, [node.MinSecretBytes]byte{1, 2, 3})),
		NoLease: node.NoLease(storedParts()[0].Owner), WholeTime: int64(node.FloorAt(storedAt)),
	}
}

// This version writes the same texts as the previous one, and reads that version's texts.
func TestStoredTexts(t *testing.T) {
	const path = "testdata/texts.json"
	keys := testKeys(t, "a secret")
	if *update {
		raw, err := json.MarshalIndent(written(keys), "", "\t")
		if err == nil {
			err = os.WriteFile(path, append(raw, '\n'), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var stored texts
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &stored)
	}
	if err != nil {
		t.Fatal(err)
	}
	now := written(keys)
	if len(now.Cursor) != len(stored.Cursor) {
		t.Errorf("a cursor has %d characters, and had %d", len(now.Cursor), len(stored.Cursor))
	}
	now.Cursor = stored.Cursor
	if now != stored {
		t.Errorf("another version of this cluster would not know these texts: keep both forms for one version, or raise the format number (docs/internals/formats.md).\n got %+v\nwant %+v", now, stored)
	}
	wantRead(t, testKeys(t, "a newer secret", "a secret"), stored)
}

func wantRead(t *testing.T, keys *keyring.Ring, stored texts) {
	t.Helper()
	for text, want := range map[string][]keyring.LeaseID{stored.LeaseID: storedParts()[:1], stored.Bundle: storedParts()} {
		sealed, _ := keyring.Decode(text)
		if got, _ := keys.OpenLease(caller, sealed); !slices.Equal(got, want) {
			t.Errorf("%s is %+v, want %+v", text, got, want)
		}
	}
	if got, ok := keys.OpenCursor(use, stored.Cursor); !ok || got != storedPlace {
		t.Errorf("the cursor is %q", got)
	}
	if !slices.Contains(keys.Owners(caller, "a key"), stored.Owner) {
		t.Error("a retry of an idempotency key would not find its lease")
	}
	if resource, slot := lockcore.SlotOf(stored.Slot); resource != "orders" || slot != 2 {
		t.Errorf("the slot is %d of %s", slot, resource)
	}
	m := parseMeta(stored.Meta)
	if !m.acquired.Equal(storedAt) || m.holder != "worker 7 ü" || string(m.metadata) != `{"a":[1]}` {
		t.Errorf("the metadata are %+v", m)
	}
	if m := parseMeta(stored.BareMeta); !m.acquired.Equal(storedAt) || m.holder != "" || m.metadata != nil {
		t.Errorf("the bare metadata are %+v", m)
	}
	if list := node.Secrets(stored.Secrets).List(); len(list) != 1 || list[0].Epoch != 1000 {
		t.Errorf("the secrets are %v", list)
	}
}

// A lease id in an unknown, later format counts as the id of no lease, and a secret in another format is skipped.
func TestTextsOfALaterVersion(t *testing.T) {
	raw, ok := keyring.Decode(testKeys(t).SealLease(caller, storedParts()[:1]))
	if !ok {
		t.Fatal("a lease id is not decoded")
	}
	raw[0]++
	if _, ok := keyring.Decode(base64.RawURLEncoding.EncodeToString(raw)); ok {
		t.Error("the version of a lease id is not looked at")
	}
	known := node.NewSecrets(1000, [node.MinSecretBytes]byte{1})
	if list := ("v2/1001/later," + known).List(); len(list) != 1 || list[0].Epoch != 1000 {
		t.Errorf("%v", list)
	}
}

// testKeys returns the keys of these secrets, or those of "a secret" if none is given.
func testKeys(tb testing.TB, secrets ...string) *keyring.Ring {
	tb.Helper()
	if len(secrets) == 0 {
		secrets = []string{"a secret"}
	}
	var raw [][]byte
	for _, secret := range secrets {
		sum := sha256.Sum256([]byte(secret))
		raw = append(raw, sum[:])
	}
	keys, err := keyring.New(raw...)
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}
