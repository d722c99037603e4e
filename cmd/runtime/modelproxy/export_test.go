package modelproxy

// Redact exports redact() to the tests.
var Redact = redact
