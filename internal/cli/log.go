package cli

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
)

// Priorities of syslog(3) that stand before a line for the journal.
const (
	priorityError   = "<3>"
	priorityWarning = "<4>"
	priorityInfo    = "<6>"
	priorityDebug   = "<7>"
)

// LogStyle says who reads the log.
type LogStyle string

// The styles of a log.
const (
	// LogJournal: the service manager reads standard error. Each line begins with
	// its priority and carries no time, since the journal has its own.
	LogJournal LogStyle = "journal"
	// LogTerminal: a person reads, or a file keeps it.
	LogTerminal LogStyle = "terminal"
)

// LogStyleFor tells the style from the environment that a service manager
// gives to its services.
func LogStyleFor(getenv func(string) string) LogStyle {
	if getenv("JOURNAL_STREAM") != "" {
		return LogJournal
	}
	return LogTerminal
}

// NewLogHandler writes records of at least the level to w, one line each, in
// one call of Write.
func NewLogHandler(w io.Writer, level slog.Leveler, style LogStyle) slog.Handler {
	out := &lines{w: w}
	opts := &slog.HandlerOptions{Level: level}
	if style == LogJournal {
		opts.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
				return slog.Attr{}
			}
			return a
		}
	}
	return &logHandler{out: out, style: style, text: slog.NewTextHandler(&out.buf, opts)}
}

// lines puts the priority before a line and writes both at once.
type lines struct {
	w  io.Writer
	mu sync.Mutex // guards buf
	// buf holds the line that is being made.
	buf bytes.Buffer
}

type logHandler struct {
	out   *lines
	style LogStyle
	text  slog.Handler
}

func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.text.Enabled(ctx, level)
}

func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	h.out.buf.Reset()
	if h.style == LogJournal {
		h.out.buf.WriteString(priority(r.Level))
	}
	if err := h.text.Handle(ctx, r); err != nil {
		return err
	}
	_, err := h.out.w.Write(h.out.buf.Bytes())
	return err
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{out: h.out, style: h.style, text: h.text.WithAttrs(attrs)}
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{out: h.out, style: h.style, text: h.text.WithGroup(name)}
}

func priority(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return priorityError
	case level >= slog.LevelWarn:
		return priorityWarning
	case level >= slog.LevelInfo:
		return priorityInfo
	default:
		return priorityDebug
	}
}
