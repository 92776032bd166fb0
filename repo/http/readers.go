package http

import (
	"context"
	"errors"
	"net/http"
)

// ErrRefused is the error of a Readers for a credential that opens nothing.
var ErrRefused = errors.New("the credential does not open this repository")

// Readers says who may read. It is asked for every file, at the same time.
type Readers interface {
	// Admit returns nil when the user may read, an error that wraps ErrRefused
	// when not, and any other when it cannot be told.
	Admit(ctx context.Context, user, password string) error
}

// admit answers a request that may not read, and returns false then. What
// everybody must see before they can have a credential stays open: the key, the
// ready-made configuration, and the page that says how to use them.
func (h *handler) admit(w http.ResponseWriter, req *http.Request) bool {
	if h.readers == nil {
		return true
	}
	user, password, given := req.BasicAuth()
	err := ErrRefused
	if given {
		err = h.readers.Admit(req.Context(), user, password)
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, ErrRefused):
		if given {
			h.log.Info("reader of the repository refused", "user", clip(user), "remote", req.RemoteAddr)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="mesh repository", charset="UTF-8"`)
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "this repository is for the machines of its mesh; each has its own credential, which ends when the machine leaves", http.StatusUnauthorized)
	default:
		h.log.Error("it cannot be told who reads the repository", "error", err)
		http.Error(w, "the repository cannot tell who may read it; its log says why", http.StatusServiceUnavailable)
	}
	return false
}

func clip(s string) string { return s[:min(len(s), 80)] }
