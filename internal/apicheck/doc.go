// Package apicheck lists what the packages that applications import export. Its test
// compares that with the committed listings, so that a change of them is seen.
package apicheck
