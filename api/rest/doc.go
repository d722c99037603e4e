// Package rest is Parley's HTTP contract: what clients send and get, how requests are decoded, and
// what HTTP calls the fields of the kinds. A Go client marshals and unmarshals these types, and
// needs nothing else.
package rest
