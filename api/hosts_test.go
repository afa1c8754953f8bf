package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/lockcore"
)

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		hosts   edge.Hosts
		allowed string
		refused string
	}{
		{edge.Hosts{Listen: "127.0.0.1:8080"}, "127.0.0.1 127.0.0.1:8080 127.9.9.9 localhost LOCALHOST:1 localhost. [::1] [::1]:8080", "evil.example 10.0.0.1 127.0.0.1.evil.example localhost.evil.example [fe80::1]:80 0.0.0.0 2130706433 *"},
		{edge.Hosts{Listen: "10.0.0.1:8080"}, "10.0.0.1 10.0.0.1:99 localhost", "10.0.0.2 evil.example"},
		{edge.Hosts{Listen: "locks.internal:8080"}, "locks.internal Locks.Internal:8080 localhost", "10.0.0.2 internal"},
		{edge.Hosts{Listen: "0.0.0.0:8080"}, "10.0.0.2 10.0.0.2:1 [2001:db8::1]:80 localhost", "evil.example fencelock"},
		{edge.Hosts{Listen: ":8080"}, "10.0.0.2 localhost", "evil.example"},
		{edge.Hosts{Listen: "[::]:8080", Names: []string{"fencelock", "b.example"}}, "fencelock:8080 FENCELOCK b.example. 10.0.0.1", "evil.example a.b.example"},
		{edge.Hosts{Listen: "127.0.0.1:8080", Names: []string{edge.AnyHost}}, "evil.example", ""},
	} {
		s := newService(t, &fake{status: func() lockcore.ClusterStatus { return lockcore.ClusterStatus{Ready: true, Quorum: 1} }}, func(o *api.Options) { o.Hosts = &c.hosts })
		ask := func(host string) answered {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/readyz", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			return s.do(req)
		}
		for host := range strings.FieldsSeq(c.allowed) {
			want(t, host+" at "+c.hosts.Listen, ask(host).status, http.StatusOK)
		}
		for host := range strings.FieldsSeq(c.refused) {
			ask(host).wants(http.StatusMisdirectedRequest).problem("host-not-served")
		}
	}
}
