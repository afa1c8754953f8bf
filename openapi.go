// Package fencelock contains the HTTP contract, openapi.yaml, which the program serves. Applications import
// the packages client and fencing.
package fencelock

import _ "embed" // for openapi.yaml

// OpenAPI is the text of openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI string
