package apt

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
)

var (
	planInstall = regexp.MustCompile(`^Inst (\S+) (?:\[[^\]]*\] )?\((\S+) .*?\[([a-z0-9-]+)\]\)`)
	planRemove  = regexp.MustCompile(`^(?:Remv|Purg) (\S+)(?: \[([^\]]*)\])?`)
)

// parsePlan reads what apt-get -s prints: a line a package. A line that is not
// understood makes the plan unusable.
func parsePlan(output string) (pkg.Plan, error) {
	var plan pkg.Plan
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "Inst "):
			f := planInstall.FindStringSubmatch(line)
			if f == nil {
				return pkg.Plan{}, fmt.Errorf("read apt's plan: %q is not understood", line)
			}
			name, _, _ := strings.Cut(f[1], ":")
			plan.Install = append(plan.Install, pkg.Step{Name: name, Version: f[2], Arch: f[3]})
		case strings.HasPrefix(line, "Remv "), strings.HasPrefix(line, "Purg "):
			f := planRemove.FindStringSubmatch(line)
			if f == nil {
				return pkg.Plan{}, fmt.Errorf("read apt's plan: %q is not understood", line)
			}
			// Without an architecture it is the machine's own, or none.
			name, arch, _ := strings.Cut(f[1], ":")
			plan.Remove = append(plan.Remove, pkg.Step{Name: name, Version: f[2], Arch: arch})
		}
	}
	return plan, nil
}

// verdict maps what apt writes, in the C locale, to a reason. It only refines
// what is reported of a failure that the exit status told already.
type verdict struct {
	reason mesh.Reason
	marks  []string
	says   string
}

var verdicts = []verdict{
	{mesh.ReasonInterrupted, []string{"dpkg was interrupted"}, "an earlier dpkg run was interrupted"},
	{mesh.ReasonNoSpace, []string{"No space left on device", "You don't have enough free space"}, "there is not enough space"},
	{mesh.ReasonHeld, []string{"Held packages were changed", "held packages were changed"}, "the admin of this machine holds the package"},
	{mesh.ReasonWouldRemove, []string{"essential packages will be removed", "Essential packages were removed"}, "it would remove what the system cannot do without"},
	{mesh.ReasonSignature, []string{"Hash Sum mismatch", "File has unexpected size", "unauthenticated packages", "NO_PUBKEY", "GPG error"}, "a signature or checksum is wrong"},
	{mesh.ReasonNotAvailable, []string{"Unable to locate package", "has no installation candidate"}, "no repository of this node offers it"},
	{mesh.ReasonRepository, []string{"Failed to fetch", "Unable to fetch some archives"}, "a repository could not be reached"},
}

var lockMarks = []string{"Could not get lock", "Unable to acquire the dpkg frontend lock", "Unable to lock", "dpkg frontend lock was locked by another process", "dpkg frontend lock is locked by another process"}

var (
	versionMissing = regexp.MustCompile(`Version .(\S+). for .(\S+). was not found`)
	nameMissing    = regexp.MustCompile(`Unable to locate package (\S+)|Package '?([^\s']+)'? has no installation candidate`)
)

func classify(output string, status int, next string) error {
	last := pkg.LastLines(output, reportLines)
	for _, mark := range lockMarks {
		if strings.Contains(output, mark) {
			return resource.Deferred(mesh.ReasonLocked, nil, "somebody else holds the lock of the package manager; it is tried again").WithOutput(last)
		}
	}
	if f := versionMissing.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonNotAvailable, nil, "%s %s is not in any repository of this node", strings.Trim(f[2], "‘’'"), strings.Trim(f[1], "‘’'")).WithOutput(last)
	}
	if f := nameMissing.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonNotAvailable, nil, "no repository of this node offers a package named %s", f[1]+f[2]).WithOutput(last)
	}
	for _, v := range verdicts {
		if slices.ContainsFunc(v.marks, func(mark string) bool { return strings.Contains(output, mark) }) {
			return resource.Failed(v.reason, nil, "apt ended with %d: %s", status, v.says).WithOutput(last)
		}
	}
	if i := strings.Index(output, "The following packages have unmet dependencies"); i >= 0 {
		return resource.Failed(mesh.ReasonTool, nil, "apt finds no way to install it: what it depends on, or conflicts with, stands against it").WithOutput(pkg.LastLines(output[i:], reportLines))
	}
	return resource.Failed(mesh.ReasonTool, nil, "apt ended with %d; %s", status, next).WithOutput(last)
}

// refreshFailures reports whether apt-get update could not fetch or verify
// everything, names what, and says whether a signature was at fault. That apt
// tried something optional in vain (an Err line that becomes an Ign line) is no
// failure; what it complains of at the end is.
func refreshFailures(output string) (failed []string, signature bool) {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "E: ") && !(strings.HasPrefix(line, "W: ") && alarming(line)) {
			continue
		}
		if strings.Contains(line, "GPG error") || strings.Contains(line, "NO_PUBKEY") || strings.Contains(line, "is not signed") || strings.Contains(line, "signature") {
			signature = true
		}
		if about := line[len("E: "):]; !slices.Contains(failed, about) && len(failed) < 5 {
			failed = append(failed, about)
		}
	}
	return failed, signature
}

// alarming reports whether a warning of apt-get update means that something
// was not fetched. Others are about style.
func alarming(line string) bool {
	for _, mark := range []string{"Failed to fetch", "Some index files failed", "GPG error", "error occurred during the signature verification", "is not valid yet", "is expired", "is not signed", "does not have a Release file", "changed its"} {
		if strings.Contains(line, mark) {
			return true
		}
	}
	return false
}
