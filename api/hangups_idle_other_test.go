//go:build !linux

package api

func (*hangups) idle() error { return nil }
