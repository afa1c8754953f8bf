// Package keyfile reads files of keys, such as the file in FENCELOCK_PROOF_KEY_FILE.
package keyfile

import (
	"fmt"
	"os"

	"github.com/fencelock/fencelock/fencing"
)

// Read reads a file in the form of fencing.ParseProofKeys. The error names the file.
func Read(path string) (*fencing.ProofKeys, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keys, err := fencing.ParseProofKeys(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}
