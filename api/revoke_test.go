package api_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/lockcore"
)

// TestAGrantAfterTheRevocationIsGivenBack: the decision of a waiting acquire comes
// at the moment in which its caller loses its token, or the right.
func TestAGrantAfterTheRevocationIsGivenBack(t *testing.T) {
	for name, c := range map[string]struct {
		after   string
		status  int
		problem string
	}{
		"the token": {line("v", "acquire=*"), http.StatusUnauthorized, "unauthorized"},
		"the right": {line("w", "acquire=* none=r"), http.StatusForbidden, "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "access")
			write := func(text string) {
				if err := os.WriteFile(path, []byte(text+"end\n"), 0o600); err != nil {
					t.Error(err)
				}
			}
			write(line("w", "acquire=* held=1"))
			keeper, err := access.Open(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			released := make(chan string, 1)
			s := newService(t, &fake{
				acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
					write(c.after)
					if err := keeper.Load(); err != nil {
						t.Error(err)
					}
					return grant(req.Resource), nil // although ctx has ended
				},
				release: func(_ context.Context, id string) error { released <- id; return nil },
			}, func(o *api.Options) { o.Access = keeper })
			s.call("POST", "/locks", `{"resource":"r","wait_ms":60000}`, bearer("w")).wants(c.status).problem(c.problem)
			want(t, "released", <-released, grant("r").ID)
		})
	}
}
