// Package s3 tests the archive with a server for the S3 protocol.
package s3
