//go:build !unix

package screen

import "os"

// Size returns the usual size of a terminal.
func Size(*os.File) (width, height int) { return usualWidth, usualHeight }
