package client

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// The variables that fencelock run sets for its command. Variables for several resources are JSON objects
// with a field for each resource.
const (
	varFencingToken  = "FENCING_TOKEN"
	varFencingProof  = "FENCING_PROOF"
	varResource      = "FENCELOCK_RESOURCE"
	varFencingTokens = "FENCING_TOKENS"
	varFencingProofs = "FENCING_PROOFS"
	varLeaseID       = "FENCELOCK_LEASE_ID"
)

// allLeaseVariables returns all variables that leaseVariables may set. Those that it does not set are
// removed, because they would describe another lease.
func allLeaseVariables() []string {
	return []string{varFencingToken, varFencingProof, varResource, varFencingTokens, varFencingProofs, varLeaseID}
}

// leaseVariables returns the variables that describe a lease to a command, as name=value.
func leaseVariables(lease *client.Lease) []string {
	variables := []string{varLeaseID + "=" + lease.ID()}
	parts := lease.Parts()
	if len(parts) == 1 {
		if proof := parts[0].Proof(); proof != "" {
			variables = append(variables, varFencingProof+"="+proof)
		}
		return append(variables, varFencingToken+"="+parts[0].Token.String(), varResource+"="+parts[0].Resource)
	}
	tokens, proofs := make(map[string]fencing.Token), make(map[string]string)
	for _, p := range parts {
		tokens[p.Resource] = p.Token
		if proof := p.Proof(); proof != "" {
			proofs[p.Resource] = proof
		}
	}
	if len(proofs) > 0 {
		text, _ := json.Marshal(proofs) //nolint:errchkjson // strings can always be encoded
		variables = append(variables, varFencingProofs+"="+string(text))
	}
	text, _ := json.Marshal(tokens) //nolint:errchkjson // and so can numbers
	return append(variables, varFencingTokens+"="+string(text))
}

// outerLease returns the lease id of an enclosing run of the same resources, otherwise "". It returns an
// error if the enclosing run has only some of the resources, because this run would wait for itself. A
// run for a slot joins an enclosing run that has any slot of the same resource.
func outerLease(resources []string, slots int) (string, error) {
	id, outer := os.Getenv(varLeaseID), outerResources()
	if slots > 0 && len(outer) == 1 {
		base, slot := lockcore.SlotOf(outer[0])
		if id == "" || slot == 0 || !slices.Equal(resources, []string{base}) {
			return "", nil
		}
		return id, nil
	}
	isOuter := func(resource string) bool { return slices.Contains(outer, resource) }
	switch {
	case id == "" || !slices.ContainsFunc(resources, isOuter):
		return "", nil
	case slices.Equal(slices.Sorted(slices.Values(resources)), outer):
		return id, nil
	}
	return "", cli.UsageError{Err: fmt.Errorf("the lease of %s has %s, so a run of %s would wait for itself: name the same resources, or unset %s to wait",
		varLeaseID, named(outer), named(resources), varLeaseID)}
}

// outerResources returns the resources of the enclosing run, in the order of their names.
func outerResources() []string {
	if resource := os.Getenv(varResource); resource != "" {
		return []string{resource}
	}
	var tokens map[string]fencing.Token
	_ = json.Unmarshal([]byte(os.Getenv(varFencingTokens)), &tokens) // a text that describes no lease has no resources
	return slices.Sorted(maps.Keys(tokens))
}

// named formats resources for a message.
func named(resources []string) string {
	return strings.Join(slices.Sorted(slices.Values(resources)), ", ")
}

// resourcesOf formats the resources of a lease for a message.
func resourcesOf(lease *client.Lease) string {
	var resources []string
	for _, p := range lease.Parts() {
		resources = append(resources, p.Resource)
	}
	return named(resources)
}
