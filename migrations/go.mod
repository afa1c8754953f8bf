module github.com/fencelock/fencelock/migrations

go 1.26.0
