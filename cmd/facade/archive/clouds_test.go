//go:build clouds

package archive_test

import (
	"testing"

	"gocloud.dev/blob"
)

func TestTheCloudsAreThere(t *testing.T) {
	for _, scheme := range []string{"file", "s3", "gs", "azblob"} {
		if !blob.DefaultURLMux().ValidBucketScheme(scheme) {
			t.Errorf("%s:// is not known", scheme)
		}
	}
}
