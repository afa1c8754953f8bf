module github.com/fencelock/fencelock/fencing

go 1.25.0
