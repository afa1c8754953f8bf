// Package server has the commands that run the lock service, and that check what it would run with.
package server

import (
	"github.com/spf13/cobra"
)

// Commands run a server and check its configuration. Both name variables that nobody reads, which are
// probably misspelt; clientVariables are those that only the client's commands read.
func Commands(clientVariables []string) []*cobra.Command {
	return []*cobra.Command{serveCommand(clientVariables), checkCommand(clientVariables)}
}
