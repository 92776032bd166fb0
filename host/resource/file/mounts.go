package file

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mounts knows which single files are mounted somewhere else too, also inside
// containers: those go on showing a file that is replaced. It is read once a
// pass, when the first file is about to be replaced.
type mounts struct {
	read bool
	// places are by device and inode, each as people would look for it.
	places map[[2]uint64][]string
}

const (
	// namespacesLimit and mountsLimit bound what is read of a machine with very
	// many containers.
	namespacesLimit = 1000
	mountsLimit     = 8 << 20 // bytes of one table
)

// of returns where else the file is mounted.
func (m *mounts) of(p print, path string) []string {
	if !m.read {
		m.read = true
		m.scan()
	}
	return slices.DeleteFunc(slices.Clone(m.places[[2]uint64{p.dev, p.ino}]), func(place string) bool { return place == path })
}

// scan reads the mount tables of all namespaces that processes are in. What
// cannot be read is left out: this is for a note, and no note is a promise.
func (m *mounts) scan() {
	m.places = make(map[[2]uint64][]string)
	own, _ := os.Readlink("/proc/self/ns/mnt")
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return
	}
	done := map[string]bool{own: true}
	m.table("/proc/self", "")
	for _, process := range processes {
		namespace, err := os.Readlink(process + "/ns/mnt")
		if err != nil || done[namespace] || len(done) > namespacesLimit {
			continue
		}
		done[namespace] = true
		m.table(process, "process "+strings.TrimPrefix(process, "/proc/")+" in ")
	}
}

// table adds the single files that are mounted in the namespace of a process.
func (m *mounts) table(process, where string) {
	f, err := os.Open(process + "/mountinfo")
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, mountsLimit))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		// Of a whole file system the root is mounted, and of a directory nothing
		// goes stale.
		if len(fields) < 5 || fields[3] == "/" {
			continue
		}
		if !slices.Contains(answering, typeOf(fields)) {
			continue
		}
		place := unescape(fields[4])
		var st unix.Stat_t
		if unix.Lstat(process+"/root"+place, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		key := [2]uint64{st.Dev, st.Ino}
		m.places[key] = append(m.places[key], where+place)
	}
}

// answering lists the file systems that are local to this kernel. One on a
// network may never answer.
var answering = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay"}

// typeOf returns the type of the file system in a line of a mount table: it
// stands after the optional fields, which end with a dash.
func typeOf(fields []string) string {
	if at := slices.Index(fields, "-"); at > 0 && at+1 < len(fields) {
		return fields[at+1]
	}
	return ""
}

// unescape undoes the octal escapes of a mount table.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// packageOf asks the package database which package ships the file at a path.
// It is asked only when something that stood there is taken over or was changed.
func packageOf(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, ask := range [][]string{{"dpkg-query", "-S", path}, {"rpm", "-qf", "--qf", "%{NAME}\n", path}} {
		program, err := exec.LookPath(ask[0])
		if err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, program, ask[1:]...)
		cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.WaitDelay = time.Second
		out, err := cmd.Output()
		if err != nil {
			// No package has it, or there is no such database.
			continue
		}
		line, _, _ := bytes.Cut(out, []byte("\n"))
		name, _, _ := strings.Cut(string(line), ": ")
		if name = strings.TrimSpace(name); name != "" && !strings.HasPrefix(name, "diversion ") {
			return name
		}
	}
	return ""
}
