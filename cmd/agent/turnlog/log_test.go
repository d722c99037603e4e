package turnlog

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	lockTimeout = 2 * time.Second
	os.Exit(m.Run())
}

func TestAnIncompleteLastRecordIsTruncated(t *testing.T) {
	t.Parallel()
	for name, torn := range map[string]string{"half a line": `{"kind":"pro`, "a line that is not JSON": "\x00\x00\x00\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			log, err := Create(home, "id")
			if err != nil {
				t.Fatal(err)
			}
			if err := log.Append(Record{Kind: KindSession}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := Open(home, "id"); err == nil {
				t.Error("the log was opened twice")
			}
			_ = log.Close()
			file := filepath.Join(home, directory, "id", fileName)
			f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = f.WriteString(torn)
			_ = f.Close()
			for want := 1; want <= 3; want++ {
				log, records, err := Open(home, "id")
				if err != nil || len(records) != want {
					t.Fatalf("%d records, %v", len(records), err)
				}
				if err := log.Append(Record{Kind: KindEnd}); err != nil {
					t.Fatal(err)
				}
				_ = log.Close()
			}
		})
	}
}

// A full disk may accept only a part of a record. The next record must not continue that line.
func TestAPartlyWrittenRecordIsRemoved(t *testing.T) {
	home := t.TempDir()
	log, err := Create(home, "id")
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Append(Record{Kind: KindSession}); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	var usual syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &usual); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 40, Max: usual.Max}); err != nil {
		t.Fatal(err)
	}
	full := log.Append(Record{Kind: KindPrompt, Turn: "a text that does not fit on the disk"})
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &usual); err != nil {
		t.Fatal(err)
	}
	if full == nil {
		t.Fatal("the record was written in spite of the limit")
	}
	for range 2 {
		if err := log.Append(Record{Kind: KindEnd}); err != nil {
			t.Fatal(err)
		}
	}
	_ = log.Close()
	if _, records, err := Open(home, "id"); err != nil || len(records) != 3 {
		t.Errorf("%d records, %v", len(records), err)
	}
}

func TestOpenRejectsADamagedLog(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, directory, "id"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, directory, "id", fileName),
		[]byte("{\"kind\":\"session\"}\nrubbish\n{\"kind\":\"end\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(home, "id"); err == nil {
		t.Error("a damaged log was opened")
	}
}

// A process may keep its log locked for a moment after its client was killed.
func TestOpenWaitsForTheLock(t *testing.T) {
	home := t.TempDir()
	first, err := Create(home, "s1")
	if err == nil {
		err = first.Append(Record{Kind: KindSession})
	}
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = first.Close() })
	second, records, err := Open(home, "s1")
	if err != nil || len(records) != 1 {
		t.Fatalf("got %v, %v", records, err)
	}
	_ = second.Close()
}
