module github.com/fencelock/fencelock/client

go 1.25.0

require (
	github.com/fencelock/fencelock/api/wire v0.1.0
	github.com/fencelock/fencelock/fencing v0.1.0
)
