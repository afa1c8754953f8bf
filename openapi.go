// Package fencelock holds the HTTP contract, openapi.yaml, for the program to
// serve. What an application imports is in the packages client and fencing.
package fencelock

import _ "embed" // for openapi.yaml

// OpenAPI is the text of openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI string
