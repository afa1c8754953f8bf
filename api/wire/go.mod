module github.com/fencelock/fencelock/api/wire

go 1.25.0
