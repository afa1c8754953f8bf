module github.com/fencelock/fencelock/client/gocronlock

go 1.26.0

require (
	github.com/fencelock/fencelock/client v0.1.0
	github.com/go-co-op/gocron/v2 v2.21.2
)

require (
	github.com/fencelock/fencelock/api/wire v0.1.0 // indirect
	github.com/fencelock/fencelock/fencing v0.1.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
)
