//go:build !linux

package api

import "net"

// hangups is for Linux; elsewhere a goroutine waits to read from each connection.
type hangups struct{}

func (*hangups) watch(net.Conn, func()) (stop func(), ok bool) { return nil, false }
