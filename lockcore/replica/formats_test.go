package replica_test

import (
	"flag"
	"testing"

	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
)

var update = flag.Bool("update", false, "write the fixtures of the rows again")

func openMemory(*testing.T) replica.Store { return memstore.New(memstore.Options{}) }

// This version writes the same rows as the previous one, and reads that version's rows.
func TestStoredRows(t *testing.T) { nodetest.Rows(t, "testdata/rows", *update, openMemory) }

func TestRowsOfALaterVersion(t *testing.T) { nodetest.LaterRows(t, "testdata/rows", openMemory) }
