package e2e

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// busSocket is the path at which a kubelet expects the system bus. The tests have their own /run in
// their Linux namespaces, so no other program uses this path.
const busSocket = "/run/dbus/system_bus_socket"

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path=` + busSocket + `</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
`

const (
	logindName      = "org.freedesktop.login1"
	logindPath      = dbus.ObjectPath("/org/freedesktop/login1")
	logindInterface = logindName + ".Manager"
)

// logind is a stub of systemd-logind on its own system bus. It has the methods with which a kubelet
// delays a shutdown, but shuts down nothing.
type logind struct {
	bus  *dbus.Conn
	lock *os.File
	// inhibited receives a value when the kubelet has taken its inhibitor lock.
	inhibited chan struct{}
}

// startLogind starts the stub. The returned function stops the stub and its bus.
func (t *t) startLogind() (stub *logind, stop func()) {
	config := filepath.Join(runDir, "dbus.conf")
	t.must(cluster.WritePrivate(config, []byte(busConfig)))
	t.must(os.MkdirAll(filepath.Dir(busSocket), 0o755))
	t.must(t.supervisor.Start(t.ctx, cluster.Process{
		Name: "dbus-daemon", Path: "dbus-daemon", Grace: time.Second,
		Args:  []string{"--config-file=" + config, "--nofork", "--nopidfile"},
		Ready: func(context.Context) error { _, err := os.Stat(busSocket); return err },
	}))
	stop = func() { t.supervisor.End("dbus-daemon") }
	bus, err := dbus.Connect("unix:path=" + busSocket)
	if err != nil {
		stop()
		t.Fatal(err)
	}
	stub = &logind{bus: bus, inhibited: make(chan struct{}, 1)}
	t.must(bus.Export(stub, logindPath, logindInterface))
	t.must(bus.Export(logindProperties{}, logindPath, "org.freedesktop.DBus.Properties"))
	if _, err := bus.RequestName(logindName, dbus.NameFlagDoNotQueue); err != nil {
		stop()
		t.Fatal(err)
	}
	return stub, stop
}

// Inhibit returns an inhibitor lock: a file that delays the shutdown while it is open.
func (l *logind) Inhibit(_, _, _, _ string) (dbus.UnixFD, *dbus.Error) {
	var err error
	if l.lock, err = os.Open(os.DevNull); err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	select {
	case l.inhibited <- struct{}{}:
	default:
	}
	return dbus.UnixFD(l.lock.Fd()), nil
}

func (l *logind) announceShutdown() error {
	return l.bus.Emit(logindPath, logindInterface+".PrepareForShutdown", true)
}

type logindProperties struct{}

// Get returns the longest possible delay of a shutdown. A kubelet reads no other property.
func (logindProperties) Get(_, _ string) (dbus.Variant, *dbus.Error) {
	return dbus.MakeVariant(uint64(time.Hour.Microseconds())), nil
}
