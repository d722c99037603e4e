package driver_test

import (
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

const (
	waits = `raw {"sessionUpdate":"session_info_update","_meta":{"parley.dev/partial":true,"parley.dev/retry":` +
		`{"reason":"The provider limits hunter2.","at":"2026-11-17T15:04:05Z"}}}`
	worksAgain = `raw {"sessionUpdate":"session_info_update","_meta":{"parley.dev/partial":true,"parley.dev/retry":null}}`
	waiting    = "state running The provider limits ***. Next try at 15:04:05 UTC."
)

func TestTheUserSeesWhyAndWhenTheModelIsCalledAgain(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: strings.Join([]string{worksAgain, waits, worksAgain, worksAgain,
		"say here"}, "\n")}).start()
	d.until(session.StateAwaiting)
	d.expect("state loading", "user: "+strings.ReplaceAll(d.doc.FirstMessage, "hunter2", "***"), "state running", waiting,
		"state running", "agent: here",
		"state awaiting_user_input")
}

func TestAWaitForARetryIsNoLongerShownAfterARestart(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: waits + "\nhang"}).start()
	d.wait("the retry is shown", func() bool { return strings.Contains(strings.Join(d.events(), "\n"), waiting) })
	d.stop()
	d.can = "plainexactload"
	d.start() // the earlier attempt's wait is over
	d.wait("the retry is no longer shown", func() bool {
		lines := strings.Join(d.events(), "\n")
		return strings.Contains(lines[strings.Index(lines, waiting)+len(waiting):], "\nstate running")
	})
}
