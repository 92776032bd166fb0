package systemd

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Notifier sends the messages of sd_notify(3) to the service manager. The zero
// value, as when the process was not started by a service manager, sends
// nothing and reports no error. It is safe for concurrent use.
type Notifier struct {
	socket   string        // "" sends nothing; a leading "@" is an abstract address
	watchdog time.Duration // 0 means that no watchdog waits
}

// TakeNotifier reads where to send messages from this process's environment and
// removes the variables from it, so that no child can speak in its name. Call
// it once, early.
func TakeNotifier() (Notifier, error) {
	n, err := notifierFrom(os.Getenv, os.Getpid())
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if unsetErr := os.Unsetenv(name); unsetErr != nil && err == nil {
			err = fmt.Errorf("clear %s: %w", name, unsetErr)
		}
	}
	return n, err
}

// notifierFrom reads the variables that a process with this pid was given.
func notifierFrom(getenv func(string) string, pid int) (Notifier, error) {
	n := Notifier{socket: getenv("NOTIFY_SOCKET")}
	if n.socket != "" && n.socket[0] != '/' && n.socket[0] != '@' {
		return Notifier{}, fmt.Errorf("NOTIFY_SOCKET %q: want an absolute path or an abstract address", n.socket)
	}
	usec := getenv("WATCHDOG_USEC")
	if usec == "" {
		return n, nil
	}
	if for_ := getenv("WATCHDOG_PID"); for_ != "" && for_ != strconv.Itoa(pid) {
		return n, nil // meant for another process
	}
	v, err := strconv.ParseUint(usec, 10, 63)
	if err != nil || v == 0 {
		return Notifier{}, fmt.Errorf("WATCHDOG_USEC %q: want a positive number of microseconds", usec)
	}
	n.watchdog = microseconds(v)
	return n, nil
}

// Enabled says whether a service manager listens.
func (n Notifier) Enabled() bool { return n.socket != "" }

// Watchdog is the time within which the service manager wants to hear
// [Notifier.Ping] again; send at least twice as often. Zero: it does not wait.
func (n Notifier) Watchdog() time.Duration {
	if n.socket == "" {
		return 0
	}
	return n.watchdog
}

// Ready says that start-up is complete. It also arms the watchdog.
func (n Notifier) Ready() error { return n.send("READY=1") }

// Stopping says that the process is shutting down.
func (n Notifier) Stopping() error { return n.send("STOPPING=1") }

// Ping tells the watchdog that the process makes progress. Send it only when
// that was proved.
func (n Notifier) Ping() error { return n.send("WATCHDOG=1") }

// Status sets the line that systemctl status shows.
func (n Notifier) Status(text string) error {
	text = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == 0 {
			return ' '
		}
		return r
	}, text)
	return n.send("STATUS=" + text)
}

// ExtendTimeout asks for this much more time for the start or stop that is
// going on, counted from now.
func (n Notifier) ExtendTimeout(d time.Duration) error {
	return n.send("EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10))
}

func (n Notifier) send(message string) error {
	if n.socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(message)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}
