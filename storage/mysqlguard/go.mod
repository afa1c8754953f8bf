module github.com/fencelock/fencelock/storage/mysqlguard

go 1.25.0

require (
	github.com/fencelock/fencelock/fencing v0.1.0
	github.com/go-sql-driver/mysql v1.10.1
)

require filippo.io/edwards25519 v1.2.0 // indirect
