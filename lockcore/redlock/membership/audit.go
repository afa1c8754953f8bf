package membership

import (
	"context"
	"log/slog"
)

// What is done to nodes, as it stands in the audit log.
const (
	actQuarantine = "quarantine-node"
	actAdmit      = "admit-node"
	actBootstrap  = "found-cluster"
)

// audit notes what was done to node i. What failed is in the log, each time that
// it is tried.
func (m *Controller) audit(ctx context.Context, act string, i int, more ...slog.Attr) {
	attrs := append([]slog.Attr{slog.String("act", act), slog.String("node", m.nodes[i].Name()), slog.String("result", "done")}, more...)
	m.cfg.Audit.LogAttrs(ctx, slog.LevelInfo, "audit", attrs...)
}
