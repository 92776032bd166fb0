package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// shutdownGrace is how long requests that are under way may go on after the
// server was told to stop.
const shutdownGrace = 5 * time.Second

// Listen creates the operator's socket with mode 0660 and the admin group as
// its group; without such a group (negative) with mode 0600. A socket that a
// control plane left behind is replaced; one that still answers is not.
func Listen(path string, adminGID int) (*net.UnixListener, error) {
	if err := clearStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("create operator socket: %w", err)
	}
	if err := openTo(path, adminGID); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func clearStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at operator socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return mesh.Errorf(mesh.CodeConflict, "%s is there and is not a socket; move it away, or name another path as socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return mesh.Errorf(mesh.CodeConflict, "another control plane answers at %s; stop it first", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("ask who holds the operator socket: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale operator socket: %w", err)
	}
	return nil
}

func openTo(path string, gid int) error {
	if gid < 0 {
		if err := os.Chmod(path, 0o600); err != nil {
			return fmt.Errorf("set mode of operator socket: %w", err)
		}
		return nil
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("look at operator socket: %w", err)
	}
	// As a service the group is right from the start, and chown is not allowed.
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Gid) != gid {
		if err := os.Lchown(path, -1, gid); err != nil {
			return fmt.Errorf("give operator socket to group %s: %w", AdminGroup, err)
		}
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return fmt.Errorf("set mode of operator socket: %w", err)
	}
	return nil
}

// Serve answers on l until ctx ends; requests that are under way then have a
// few seconds to finish. It closes l, waits for its goroutines, and returns nil
// when it ended because of ctx.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	hs := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnContext:       s.meet,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelWarn),
	}
	stopped := make(chan error, 1)
	served := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
		case <-served:
			stopped <- nil
			return
		}
		grace, end := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer end()
		if err := hs.Shutdown(grace); err != nil {
			cancel()
			stopped <- hs.Close()
			return
		}
		stopped <- nil
	}()
	err := hs.Serve(l)
	close(served)
	stopErr := <-stopped
	if errors.Is(err, http.ErrServerClosed) && ctx.Err() != nil {
		err = nil
	}
	if err := errors.Join(err, stopErr); err != nil {
		return fmt.Errorf("serve operators: %w", err)
	}
	return nil
}

// meet finds out how to learn who is at the other end of a connection.
func (s *Server) meet(ctx context.Context, c net.Conn) context.Context {
	if known, ok := c.(Known); ok {
		return context.WithValue(ctx, callerKey{}, admitted(known.Caller))
	}
	caller, err := s.admit(c)
	return context.WithValue(ctx, callerKey{}, admitted(func() (control.Caller, error) { return caller, err }))
}

// admit asks the kernel who is at the other end of the operator's socket.
func (s *Server) admit(c net.Conn) (control.Caller, error) {
	peer, err := peerOf(c)
	if err != nil {
		s.cfg.Log.Error("peer of operator socket not known", "error", err)
		return control.Caller{}, mesh.Errorf(mesh.CodeDenied, "the control plane could not learn who is asking and answers nobody it does not know; its log has more")
	}
	caller, err := s.cfg.Admission.Admit(peer)
	if err != nil {
		s.cfg.Log.Warn("operator refused", "uid", peer.UID)
	}
	return caller, err
}
