package zkstore

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/fencelock/fencelock/storage/overlay"
	"github.com/fencelock/fencelock/storage/rowlog"
)

func TestURLs(t *testing.T) {
	for url, want := range map[string]target{
		"zookeeper://a:1,b,[::1]:3/locks":      {hosts: []string{"a:1", "b:2181", "[::1]:3"}, path: "/locks"},
		"zookeeper://u:p%40%2F:x@a/deep/path/": {hosts: []string{"a:2181"}, user: "u", password: "p@/:x", path: "/deep/path"},
		"zookeeper://u:p@ss@a:1/locks":         {hosts: []string{"a:1"}, user: "u", password: "p@ss", path: "/locks"},
		"zookeeper://a:1":                      {},
		"zookeeper://a:1/":                     {},
		"zookeeper:///locks":                   {},
		"zookeeper://a,,b/locks":               {},
		"zookeeper://user@a/locks":             {},
		"zookeeper://:password@a/locks":        {},
		"zookeeper://a/locks?tls=true":         {},
		"zookeeper://a/locks/../zookeeper":     {},
		"zookeeper://a/zookeeper/quota":        {},
		"postgres://u:p@h/d":                   {},
	} {
		got, err := parse(url)
		if want.path == "" {
			if err == nil {
				t.Errorf("%s is taken: %+v", url, got)
			}
		} else if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v (%v), want %+v", url, got, err, want)
		}
	}
}

// What is read of an entry is what was written; whatever else is in a znode is refused.
func FuzzEntry(f *testing.F) {
	whole := &entry{
		header: header{incarnation: "i", generation: 2, correction: -3, first: 4, last: 5, id: "id"}, previous: "before",
		purge: true, deleted: []string{"x", ""}, puts: []rowlog.Row{{Key: "k", Row: overlay.Row{Value: []byte("v\x00"), Ends: overlay.ForGood}}, {Key: "e", Row: overlay.Row{Value: []byte{}, Ends: 1}}},
		messages: []message{{"t", "m"}},
	}
	raw := append(whole.front(), whole.body()...)
	if again, err := decodeFront(raw); err != nil || !reflect.DeepEqual(again, whole) {
		f.Errorf("%+v (%v), want %+v", again, err, whole)
	}
	f.Add(raw)
	f.Add([]byte("somebody else's"))
	f.Add([]byte("fencelock 9\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := decodeFront(bytes.Clone(raw))
		if err != nil || e.pieces != 0 {
			return
		}
		again, err := decodeFront(append(e.front(), e.body()...))
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Errorf("%+v, then %+v (%v)", e, again, err)
		}
	})
}
