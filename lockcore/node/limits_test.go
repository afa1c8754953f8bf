package node_test

import (
	"testing"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

func TestTicketsOutliveEveryRequest(t *testing.T) {
	if node.TicketTTL <= lockcore.MaxWait {
		t.Errorf("a ticket stays for %s, and a request may wait for %s", node.TicketTTL, lockcore.MaxWait)
	}
}
