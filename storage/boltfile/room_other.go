//go:build !unix

package boltfile

func full(error) bool { return false }
