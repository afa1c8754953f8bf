package logging

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

// TestAuditIsLoggedAtEveryLevel: an operator who wants errors only wants these, too.
func TestAuditIsLoggedAtEveryLevel(t *testing.T) {
	cfg := config.Config{LogFormat: "json", LogLevel: 8}
	var out bytes.Buffer
	NewAudit(cfg, &out).Info("audit")
	if !strings.Contains(out.String(), "audit") {
		t.Error("the audit log is silent")
	}
}
