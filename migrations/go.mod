module github.com/fencelock/fencelock/migrations

go 1.25.0
