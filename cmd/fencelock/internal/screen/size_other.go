//go:build !unix

package screen

import "os"

// Size is that of a usual terminal.
func Size(*os.File) (width, height int) { return usualWidth, usualHeight }
