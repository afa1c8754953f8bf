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

// The variables that fencelock run gives its command. Those of several resources are
// JSON objects with a member for each resource.
const (
	varFencingToken  = "FENCING_TOKEN"
	varFencingProof  = "FENCING_PROOF"
	varResource      = "FENCELOCK_RESOURCE"
	varFencingTokens = "FENCING_TOKENS"
	varFencingProofs = "FENCING_PROOFS"
	varLeaseID       = "FENCELOCK_LEASE_ID"
)

// allLeaseVariables are the names of all that leaseVariables may set. The others are
// unset: they would describe another lease.
func allLeaseVariables() []string {
	return []string{varFencingToken, varFencingProof, varResource, varFencingTokens, varFencingProofs, varLeaseID}
}

// leaseVariables describe a lease to a command, as name=value.
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
		text, _ := json.Marshal(proofs) //nolint:errchkjson // texts have no error
		variables = append(variables, varFencingProofs+"="+string(text))
	}
	text, _ := json.Marshal(tokens) //nolint:errchkjson // numbers neither
	return append(variables, varFencingTokens+"="+string(text))
}

// outerLease is the lease id of the run around this one, if it has the same resources;
// else "". A run of other resources of which it has some would wait for itself. A run of a
// slot of a resource joins one that has a slot of it, whichever that is.
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

// outerResources are those of the run around this one, in the order of their names.
func outerResources() []string {
	if resource := os.Getenv(varResource); resource != "" {
		return []string{resource}
	}
	var tokens map[string]fencing.Token
	_ = json.Unmarshal([]byte(os.Getenv(varFencingTokens)), &tokens) // a text that is no lease's has no resources
	return slices.Sorted(maps.Keys(tokens))
}

// named lists resources in a message.
func named(resources []string) string {
	return strings.Join(slices.Sorted(slices.Values(resources)), ", ")
}

// resourcesOf lists the resources of a lease in a message.
func resourcesOf(lease *client.Lease) string {
	var resources []string
	for _, p := range lease.Parts() {
		resources = append(resources, p.Resource)
	}
	return named(resources)
}
