//go:build !linux

package testenv

// inMemory returns "": the folder for temporary files is used.
func inMemory() string { return "" }
