package pgguard

import "github.com/fencelock/fencelock/migrations"

const about = `-- The guard of fencelock: what "fencelock guard install" runs, all in the schema
-- "fencing". For your own migrations, run it with psql -v ON_ERROR_STOP=1, or as one
-- migration without a transaction of its own. It can be run again, also over an
-- older version. The trigger functions of protected tables stay as they are until
-- the tables are protected again.
`

// SQL is the guard as one script of plain SQL, which can be run again.
func SQL() (string, error) {
	script, err := migrations.Guard().Script()
	return about + script, err
}
