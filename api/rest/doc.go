// Package rest is Parley's HTTP contract: the types of requests and responses, the decoding of
// requests, and the mapping between HTTP names and CRD fields. A Go client marshals and unmarshals
// these types and needs nothing else.
package rest
