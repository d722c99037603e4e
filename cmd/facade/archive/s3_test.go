package archive_test

import (
	"net/http/httptest"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// The server is a small one that speaks S3's protocol, in memory: no store of anybody's, which
// would take minutes to build.
func TestSegmentsArriveOnceAndInOrderInS3(t *testing.T) {
	server := httptest.NewServer(gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server())
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "key")
	address := "s3://archive?region=us-east-1&use_path_style=true&disable_https=true&endpoint=" + server.URL
	testSegments(t, address)
	testAside(t, address)
	if err := open(t, address).Ready(t.Context()); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
}

func TestAnArchiveWithoutItsBucketIsNotReady(t *testing.T) {
	server := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "key")
	if open(t, "s3://none?region=us-east-1&use_path_style=true&disable_https=true&endpoint="+server.URL).Ready(t.Context()) == nil {
		t.Error("it is ready")
	}
}
