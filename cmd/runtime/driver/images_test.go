package driver_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// imageHost serves images. The path of the URL is the size of the image in MiB.
func imageHost(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Path[1:])
		const signature = "\x89PNG\r\n\x1a\n"
		_, _ = w.Write([]byte(signature + strings.Repeat("x", size<<20-len(signature))))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestTheTotalSizeOfTheImagesOfAMessageIsLimited(t *testing.T) {
	t.Parallel()
	host := imageHost(t)
	d := newDrive(t, session.Document{FirstMessage: "say first"}).start()
	d.untilSaid("first")
	var images []string
	for _, size := range []string{"5", "5", "5", "4", "5", "1", "5"} {
		images = append(images, host+"/"+size)
	}
	if err := d.driver.Message("say second", images, ""); err != nil {
		t.Fatal(err)
	}
	d.untilSaid("second")
	heard := d.heard()
	if n := strings.Count(heard, `"type":"image"`); n != 5 {
		t.Errorf("the agent got %d images", n)
	}
	for _, i := range []string{"5", "7"} {
		if !strings.Contains(heard, "Image "+i+" of this message could not be fetched.") || !strings.Contains(strings.Join(
			d.events(), "\n"), "Image "+i+" of the message cannot be shown to the agent: the images of one message "+
			"may have at most 20 MiB together") {
			t.Errorf("nobody was told about image %s; the events are\n%s", i, strings.Join(d.events(), "\n"))
		}
	}
}
