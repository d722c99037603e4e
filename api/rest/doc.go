// Package rest is Parley's HTTP contract: the two operations of the customer's interface document, what a client
// needs beside them, and how they map to UserSettings and Conversations. It decodes, maps, writes and answers;
// what is valid the API server decides.
package rest
