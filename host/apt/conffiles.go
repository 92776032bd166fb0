package apt

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"
)

// conffilesTimeout bounds a question to the database.
const conffilesTimeout = 20 * time.Second

// MissingConffiles implements pkg.ConffileLooker. dpkg does not bring back a
// configuration file that somebody deleted, whatever is installed anew.
func (m *Manager) MissingConffiles(ctx context.Context, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, conffilesTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dpkg-query", "--admindir="+m.c.AdminDir, "-W", "-f", "${Conffiles}\n", name)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var missing []string
	for line := range strings.Lines(string(out)) {
		// A path, its sum, and for some a word: obsolete ones are nobody's.
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if _, err := os.Lstat(fields[0]); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, fields[0])
		}
	}
	return missing, nil
}
