// Package operator has the commands that work on nodes, files and databases themselves, with or without a running server.
package operator

import (
	"github.com/spf13/cobra"
)

// Commands work on the nodes of a configuration, and on the access file.
func Commands() []*cobra.Command {
	return []*cobra.Command{bootstrapCommand(), setsCommand(), secretCommand(), tokenCommand()}
}
