package faults

import (
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

// MariaAccounts is Accounts in MariaDB.
func MariaAccounts(t *testing.T) (url string) {
	t.Helper()
	maria := testenv.MariaDB(t)
	if err := mysqlguard.Install(t.Context(), maria.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	db := maria.DB()
	for _, sql := range []string{
		"CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL)",
		"INSERT INTO accounts SELECT seq, 0 FROM seq_1_to_1000",
		"CALL fencing_protect('accounts', \"CONCAT('accounts/', id)\", 'strict')",
	} {
		if _, err := db.ExecContext(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return maria.OwnerURL()
}
