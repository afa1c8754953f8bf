package client

import (
	"testing"
)

func TestOwnServer(t *testing.T) {
	for listen, want := range map[string]string{
		"": "http://127.0.0.1:8080", ":90": "http://127.0.0.1:90", "0.0.0.0:90": "http://127.0.0.1:90", "[::]:90": "http://[::1]:90",
		"10.1.2.3:90": "http://10.1.2.3:90", "localhost:90": "http://localhost:90", "127.0.0.1:0": "", "nonsense": "",
	} {
		t.Setenv("FENCELOCK_LISTEN", listen)
		if got, err := ownServer(); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", listen, got, err, want)
		}
	}
}
