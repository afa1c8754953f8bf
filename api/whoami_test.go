package api_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
)

func TestWhoAmI(t *testing.T) {
	open := decode[wire.Caller](newService(t, nil).call("GET", "/whoami", "").wants(http.StatusOK))
	if open.Name != "" || !slices.Equal(open.Rules, []wire.Rule{{Right: "admin"}}) {
		t.Errorf("without access control: %+v", open)
	}
	s := newService(t, nil, withAccess(t, line("worker", "read=* acquire=orders/ none=orders/secret/"), line("idle", "")))
	worker := decode[wire.Caller](s.call("GET", "/whoami", "", bearer("worker")).wants(http.StatusOK))
	rules := []wire.Rule{{Prefix: "orders/secret/", Right: "none"}, {Prefix: "orders/", Right: "acquire"}, {Right: "read"}}
	if worker.Name != "worker" || !slices.Equal(worker.Rules, rules) {
		t.Errorf("the worker: %+v", worker)
	}
	want(t, "no rules", s.call("GET", "/whoami", "", bearer("idle")).wants(http.StatusOK).body, `{"name":"idle","rules":[]}`+"\n")
	s.call("GET", "/whoami", "").wants(http.StatusUnauthorized).problem("unauthorized")
	s.call("GET", "/whoami?name=worker", "", bearer("worker")).wants(http.StatusBadRequest).problem("invalid-request")
}
