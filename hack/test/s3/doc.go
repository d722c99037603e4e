// Package s3 tests the archive with a server that speaks S3's protocol.
package s3
