package zkstore

import (
	"bytes"
	"reflect"
	"testing"
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

// An entry is read as it was written, and any other content of a znode is refused.
func FuzzEntry(f *testing.F) {
	whole := entry{number: 7, zxid: 8, noted: 300, head: "head", value: []byte("value\x00")}
	raw := whole.encode()
	if again, ok := decodeEntry(7, 8, raw); !ok || !reflect.DeepEqual(again, whole) {
		f.Errorf("%+v, want %+v", again, whole)
	}
	f.Add(raw)
	f.Add([]byte("somebody else's"))
	f.Add([]byte{1, 9})
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, ok := decodeEntry(7, 8, bytes.Clone(raw))
		if !ok {
			return
		}
		again, ok := decodeEntry(7, 8, e.encode())
		if !ok || !reflect.DeepEqual(again, e) {
			t.Errorf("%+v, then %+v", e, again)
		}
	})
}

// An entry and a reading have the format of the previous version, whose servers read them.
func TestStored(t *testing.T) {
	e := entry{number: 1, zxid: 2, noted: 300, head: "HEAD", value: []byte("VALUE")}
	if got := string(e.encode()); got != "\xd8\x04\x04HEADVALUE" {
		t.Errorf("the entry is %+q: raise the format of the head, or keep both forms for one version (docs/internals/formats.md)", got)
	}
	r := reading{last: 1, noted: 300, now: 301}
	if got := string(r.encode()); got != "\x02\xd8\x04\xda\x04" {
		t.Errorf("the reading is %+q: raise the format of the head, or keep both forms for one version (docs/internals/formats.md)", got)
	}
	if again, ok := decodeReading(r.encode()); !ok || again != r {
		t.Errorf("%+v, want %+v", again, r)
	}
	if _, ok := decodeReading([]byte("another's")); ok {
		t.Error("something else is read")
	}
}
