package redlock

import "testing"

func TestListPlace(t *testing.T) {
	keys := testKeys(t, "a secret")
	sets := []*set{{nodes: fakes(3)}, {nodes: fakes(5)}}
	for _, p := range []listPlace{{}, {reader: 1}, {set: 1, reader: 2, node: "17 x"}} {
		if got, err := openListPlace(keys, "use", keys.sealCursor("use", p.String()), sets); err != nil || got != p {
			t.Errorf("%+v came back as %+v, %v", p, got, err)
		}
	}
	for _, text := range []string{"", "x", "0", "0 2 ", "2 0 ", "-1 0 ", "0 -1 ", "1 3 x"} {
		if _, err := openListPlace(keys, "use", keys.sealCursor("use", text), sets); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, err := openListPlace(keys, "use", "AAAA", sets); err == nil {
		t.Error("what no key sealed is taken")
	}
	if a, b := len(listPlace{node: "a"}.String()), len(listPlace{node: "a longer name"}.String()); a != b {
		t.Errorf("the length of a cursor tells that of a name: %d, %d", a, b)
	}
}
