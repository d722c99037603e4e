package modelproxy

// Redact exports the function redact to the tests.
var Redact = redact
