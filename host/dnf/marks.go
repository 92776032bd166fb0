package dnf

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	_ "github.com/mattn/go-sqlite3" // dnf 4 keeps its history in SQLite
	"github.com/meshctl/mesh/host/resource/pkg"
)

// marks says which packages are there because others needed them, by name and
// architecture as in "fx.noarch". What is missing was asked for, or nobody knows.
type marks map[string]bool

// The numbers by which dnf 4 writes why a package came: for another's sake, left
// over after another, recommended by another.
const automatic = "1, 3, 4"

// latest picks the last word on each package. The actions left out are those
// about the version that went when another came; the one of a removal takes
// back what was said before.
const latest = `SELECT i.name || '.' || i.arch, ti.action <> 8 AND ti.reason IN (` + automatic + `)
FROM trans_item ti JOIN trans t ON t.id = ti.trans_id JOIN rpm i USING (item_id)
WHERE t.state = 1 AND ti.action NOT IN (3, 5, 7, 10) ORDER BY ti.id`

// tomlReason is an entry of dnf5, as in `"fx.noarch" = {reason = "User"}`.
var tomlReason = regexp.MustCompile(`^"([^"]+)"\s*=\s*\{.*\breason\s*=\s*"([^"]+)"`)

// marks reads what dnf itself remembers. A dnf that remembers nothing yet has
// no files.
func (m *Manager) marks(ctx context.Context) (marks, error) {
	if m.dnf5() {
		return readReasons(m.c.Reasons)
	}
	if _, err := os.Stat(m.c.History); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	db, err := sql.Open("sqlite3", "file:"+m.c.History+"?mode=ro&_busy_timeout=5000")
	if err != nil {
		return nil, fmt.Errorf("open dnf's history: %w", err)
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, latest)
	if err != nil {
		return nil, fmt.Errorf("read dnf's history: %w", err)
	}
	defer rows.Close()
	found := make(marks)
	for rows.Next() {
		var name string
		var auto bool
		if err := rows.Scan(&name, &auto); err != nil {
			return nil, fmt.Errorf("read dnf's history: %w", err)
		}
		found[name] = auto
	}
	return found, rows.Err()
}

func readReasons(file string) (marks, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read why packages are installed: %w", err)
	}
	found := make(marks)
	for line := range strings.Lines(string(data)) {
		if f := tomlReason.FindStringSubmatch(strings.TrimSpace(line)); f != nil {
			found[f[1]] = f[2] == "Dependency" || f[2] == "Weak Dependency"
		}
	}
	return found, nil
}

func (m marks) of(e pkg.Installed) pkg.Mark {
	if m[e.Name+"."+e.Arch] {
		return pkg.MarkAuto
	}
	return pkg.MarkManual
}

// dnf5 reports whether the program is dnf5, under whatever name.
func (m *Manager) dnf5() bool {
	path, err := filepath.EvalSymlinks(m.c.Program)
	if err != nil {
		path = m.c.Program
	}
	return strings.HasPrefix(filepath.Base(path), "dnf5")
}

// Mark runs dnf mark.
func (m *Manager) Mark(ctx context.Context, names []string, mark pkg.Mark) error {
	manual, auto := "install", "remove"
	if m.dnf5() {
		manual, auto = "user", "dependency"
	}
	word := manual
	if mark == pkg.MarkAuto {
		word = auto
	}
	argv := m.command("mark", word)
	argv = append(argv, yes()...)
	_, err := m.run(ctx, "mark", append(argv, removeSpecs(names)...), 5*time.Minute)
	return err
}
