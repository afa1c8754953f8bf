// Package server has the commands that run the lock service or check its configuration.
package server

import (
	"github.com/spf13/cobra"
)

// Commands returns the commands that run a server and check its configuration. Both report variables that
// no command reads, because they are probably misspelt. clientVariables are the variables that only
// client commands read.
func Commands(clientVariables []string) []*cobra.Command {
	return []*cobra.Command{serveCommand(clientVariables), checkCommand(clientVariables)}
}
