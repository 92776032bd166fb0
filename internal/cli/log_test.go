package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

func TestTheJournalGetsEachLevelAsItsPriorityAndNoTime(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(NewLogHandler(&out, slog.LevelDebug, LogJournal)).With("node", "web-1").WithGroup("link")
	log.Debug("d")
	log.Info("i", "time", "kept")
	log.Warn("w")
	log.Error("e", "error", "a\nb")
	want := `<7>msg=d node=web-1
<6>msg=i node=web-1 link.time=kept
<4>msg=w node=web-1
<3>msg=e node=web-1 link.error="a\nb"
`
	if out.String() != want {
		t.Fatalf("log:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestATerminalGetsTimeAndLevelAndWhatIsBelowTheLevelIsLeftOut(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(NewLogHandler(&out, slog.LevelInfo, LogStyleFor(func(string) string { return "" })))
	log.Debug("hidden")
	log.Info("shown")
	if got := out.String(); !strings.HasPrefix(got, "time=") || !strings.Contains(got, "level=INFO msg=shown") || strings.Contains(got, "hidden") {
		t.Fatalf("log %q, want time, level and only what is shown", got)
	}
}

func TestLinesOfManyGoroutinesStayWhole(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(NewLogHandler(&out, slog.LevelInfo, LogStyleFor(func(string) string { return "8:1" })))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				log.With("a", "b").Info("line")
			}
		})
	}
	wg.Wait()
	for line := range strings.Lines(out.String()) {
		if line != "<6>msg=line a=b\n" {
			t.Fatalf("line %q, want each one whole", line)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 400 {
		t.Fatalf("%d lines, want 400", n)
	}
}
