// Package operator has the commands that work directly on nodes, files and databases. They do not need a
// running server.
package operator

import (
	"github.com/spf13/cobra"
)

// Commands returns the commands that work on the configured nodes and on the access file.
func Commands() []*cobra.Command {
	return []*cobra.Command{bootstrapCommand(), setsCommand(), secretCommand(), tokenCommand()}
}
