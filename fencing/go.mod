module github.com/fencelock/fencelock/fencing

go 1.26.0
