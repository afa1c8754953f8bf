package logging

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

// TestAuditIsLoggedAtEveryLevel: an operator who sets the level to errors still gets the lines of the audit log.
func TestAuditIsLoggedAtEveryLevel(t *testing.T) {
	cfg := config.Config{LogFormat: "json", LogLevel: 8}
	var out bytes.Buffer
	NewAudit(cfg, &out).Info("audit")
	if !strings.Contains(out.String(), "audit") {
		t.Error("the audit log is silent")
	}
}
