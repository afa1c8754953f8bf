package redisnode_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/storage/redisnode"
)

var update = flag.Bool("update", false, "write the fixtures of the keys again")

// storedKey is a key of a node as a line of a fixture. Values that differ from node to node, the replication id and
// the clock, have a name there.
type storedKey struct {
	Key    string            `json:"key"`
	TTL    string            `json:"ttl"` // "0s" for good
	String *string           `json:"string,omitempty"`
	Hash   map[string]string `json:"hash,omitempty"`
	Set    []storedMember    `json:"sorted_set,omitempty"` // in order
}

type storedMember struct {
	Score  float64 `json:"score"`
	Member string  `json:"member"`
}

const (
	ownID   = "<replication id>"
	ownTime = "<now>+" // and seconds
)

// The keys have the format of the previous version, and that version's keys are read.
func TestStoredKeys(t *testing.T) {
	t.Parallel()
	written, loaded := testenv.StartRedis(t), testenv.StartRedis(t)
	for _, state := range nodetest.States() {
		t.Run(state.Name, func(t *testing.T) {
			path := filepath.Join("testdata", "keys", state.Name+".txt")
			state.Write(t, openNode(t, written.URL(), redisnode.Options{CounterTTL: time.Hour}))
			keys := keysOf(t, written)
			if *update {
				if err := os.WriteFile(path, []byte(keys), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			nodetest.WantFormat(t, keys, stored(t, path))
			loaded.FlushAll()
			loadKeys(t, loaded, stored(t, path))
			state.Read(t, openNode(t, loaded.URL(), redisnode.Options{CounterTTL: time.Hour}))
		})
	}
}

// Fields that a later version adds are ignored and kept.
func TestKeysOfALaterVersion(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	client := server.Client()
	loadKeys(t, server, stored(t, "testdata/keys/admitted.txt"))
	for _, err := range []error{
		client.HSet(t.Context(), redisnode.OwnKey, "later", "field").Err(), client.Set(t.Context(), "later:kind", "of key", time.Hour).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	nodetest.States()[1].Read(t, openNode(t, server.URL(), redisnode.Options{CounterTTL: time.Hour}))
	if field, err := client.HGet(t.Context(), redisnode.OwnKey, "later").Result(); field != "field" {
		t.Errorf("the field is %q (%v)", field, err)
	}
	if kind, err := client.Get(t.Context(), "later:kind").Result(); kind != "of key" {
		t.Errorf("the key is %q (%v)", kind, err)
	}
}

func stored(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// own are the replication id and the clock of a node.
func own(t *testing.T, client *redis.Client) (id string, now int64) {
	t.Helper()
	info, err := client.Info(t.Context(), "replication").Result()
	if err != nil {
		t.Fatal(err)
	}
	clock, err := client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return redisnode.ParseInfo(info)["master_replid"], clock.Unix()
}

func keysOf(t *testing.T, server *testenv.Redis) string {
	t.Helper()
	client := server.Client()
	names, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	var text strings.Builder
	for _, name := range names {
		line, err := json.Marshal(keyOf(t, client, name))
		if err != nil {
			t.Fatal(err)
		}
		text.Write(append(line, '\n'))
	}
	return text.String()
}

func keyOf(t *testing.T, client *redis.Client, name string) (k storedKey) {
	t.Helper()
	left := max(client.PTTL(t.Context(), name).Val(), 0)
	k = storedKey{Key: name, TTL: nodetest.LeftOf(left).String()}
	switch kind := client.Type(t.Context(), name).Val(); kind {
	case "string":
		value := client.Get(t.Context(), name).Val()
		k.String = &value
	case "hash":
		id, now := own(t, client)
		k.Hash = client.HGetAll(t.Context(), name).Val()
		if k.Hash["replid"] == id {
			k.Hash["replid"] = ownID
		}
		if until, err := strconv.ParseInt(k.Hash["queued_until"], 10, 64); err == nil {
			k.Hash["queued_until"] = fmt.Sprint(ownTime, nodetest.LeftOf(time.Duration(until-now)*time.Second).Seconds())
		}
	case "zset":
		for _, z := range client.ZRangeWithScores(t.Context(), name, 0, -1).Val() {
			k.Set = append(k.Set, storedMember{Score: z.Score, Member: fmt.Sprint(z.Member)})
		}
	default:
		t.Fatalf("%s is a %s", name, kind)
	}
	return k
}

func loadKeys(t *testing.T, server *testenv.Redis, stored string) {
	t.Helper()
	client := server.Client()
	for line := range strings.Lines(stored) {
		var k storedKey
		if err := json.Unmarshal([]byte(line), &k); err != nil {
			t.Fatal(err)
		}
		if err := loadKey(t, client, k); err != nil {
			t.Fatal(err)
		}
	}
}

func loadKey(t *testing.T, client *redis.Client, k storedKey) error {
	t.Helper()
	id, now := own(t, client)
	switch {
	case k.String != nil:
		client.Set(t.Context(), k.Key, *k.String, 0)
	case k.Hash != nil:
		for field, value := range k.Hash {
			if seconds, found := strings.CutPrefix(value, ownTime); found {
				after, err := strconv.ParseInt(seconds, 10, 64)
				if err != nil {
					return err
				}
				value = strconv.FormatInt(now+after, 10)
			}
			client.HSet(t.Context(), k.Key, field, strings.Replace(value, ownID, id, 1))
		}
	default:
		for _, m := range k.Set {
			client.ZAdd(t.Context(), k.Key, redis.Z{Score: m.Score, Member: m.Member})
		}
	}
	left, err := time.ParseDuration(k.TTL)
	if err == nil && left > 0 {
		err = client.PExpire(t.Context(), k.Key, left).Err()
	}
	return err
}
