// Package apicheck lists the exported API of the packages that applications import. Its test compares it with
// the committed listings, so that a change of the API is noticed.
package apicheck
