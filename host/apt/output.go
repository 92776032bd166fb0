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
	{mesh.ReasonReadOnly, []string{"Read-only file system"}, "a file system is mounted read-only"},
	{mesh.ReasonFileConflict, []string{"trying to overwrite '"}, "another package owns one of its files"},
	{mesh.ReasonScript, []string{"script subprocess returned error", "script subprocess was killed", "subprocess returned error exit status"}, "a script of a package failed"},
	{mesh.ReasonHeld, []string{"Held packages were changed", "held packages were changed"}, "the admin of this machine holds the package"},
	{mesh.ReasonWouldRemove, []string{"essential packages will be removed", "Essential packages were removed"}, "it would remove what the system cannot do without"},
	{mesh.ReasonSignature, []string{"Hash Sum mismatch", "File has unexpected size", "unauthenticated packages", "NO_PUBKEY", "GPG error"}, "a signature or checksum is wrong"},
	{mesh.ReasonNotAvailable, []string{"Unable to locate package", "has no installation candidate"}, "no repository of this node offers it"},
	{mesh.ReasonRepository, []string{"Failed to fetch", "Unable to fetch some archives"}, "a repository could not be reached"},
	{mesh.ReasonTool, []string{"Problem executing scripts", "Failure running hook", "Failure running script"}, "a hook of this machine's apt configuration failed"},
}

var lockMarks = []string{"Could not get lock", "Unable to acquire the dpkg frontend lock", "Unable to lock", "dpkg frontend lock was locked by another process", "dpkg frontend lock is locked by another process"}

var (
	overwrites     = regexp.MustCompile(`trying to overwrite '([^']+)', which is also in package (.+)`)
	scriptFailed   = regexp.MustCompile(`(?:new|installed|old) (\S+) package ([a-z-]+ script) subprocess returned error exit status (\d+)`)
	relation       = regexp.MustCompile(`^\s*(?:(\S+) : )?(Depends|PreDepends|Pre-Depends|Recommends|Conflicts|Breaks): (.+)$`)
	versionMissing = regexp.MustCompile(`Version .(\S+). for .(\S+). was not found`)
	nameMissing    = regexp.MustCompile(`Unable to locate package (\S+)|Package '?([^\s']+)'? has no installation candidate`)
)

func classify(output string, status int, next string) error {
	last := pkg.LastLines(output, reportLines)
	if locked(output) {
		return resource.Deferred(mesh.ReasonLocked, nil, "somebody else holds the lock of the package manager; it is tried again").WithOutput(last)
	}
	if f := versionMissing.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonNotAvailable, nil, "%s %s is not in any repository of this node", strings.Trim(f[2], "‘’'"), strings.Trim(f[1], "‘’'")).WithOutput(last)
	}
	if f := nameMissing.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonNotAvailable, nil, "no repository of this node offers a package named %s", f[1]+f[2]).WithOutput(last)
	}
	if f := overwrites.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonFileConflict, nil, "it holds %s, which belongs to %s; nothing is overwritten", f[1], f[2]).WithOutput(last)
	}
	if f := scriptFailed.FindStringSubmatch(output); f != nil {
		return scriptError(f, last)
	}
	for _, v := range verdicts {
		if slices.ContainsFunc(v.marks, func(mark string) bool { return strings.Contains(output, mark) }) {
			return resource.Failed(v.reason, nil, "apt ended with %d: %s", status, v.says).WithOutput(last)
		}
	}
	if i := strings.Index(output, "The following packages have unmet dependencies"); i >= 0 {
		return unmet(output[i:])
	}
	return resource.Failed(mesh.ReasonTool, nil, "apt ended with %d; %s", status, next).WithOutput(last)
}

// locked reports whether somebody else held a lock. A script that meets the lock
// is one that failed, and something was done; a lock that the disk refuses is
// held by nobody.
func locked(output string) bool {
	if scriptFailed.MatchString(output) || strings.Contains(output, "Read-only file system") || strings.Contains(output, "No space left on device") {
		return false
	}
	return slices.ContainsFunc(lockMarks, func(mark string) bool { return strings.Contains(output, mark) })
}

// scriptOf makes an error about a failed script name the script of a package that
// was asked for, when one of those failed: dpkg also tells of scripts that it
// tried again on the way.
func scriptOf(t pkg.Transaction, output string, err error) error {
	if err == nil || resource.AsError(err).Reason != mesh.ReasonScript {
		return err
	}
	for _, f := range scriptFailed.FindAllStringSubmatch(output, -1) {
		name, _, _ := strings.Cut(f[1], ":")
		asked := slices.ContainsFunc(t.Install, func(x pkg.Target) bool { base, _, _ := strings.Cut(x.Name, ":"); return base == name })
		if asked {
			return scriptError(f, resource.AsError(err).Output)
		}
	}
	return err
}

func scriptError(f []string, output string) error {
	return resource.Failed(mesh.ReasonScript, nil, "the %s of %s failed: exit status %s", f[2], f[1], f[3]).WithOutput(output)
}

// unmet reads what stands against an installation.
func unmet(output string) error {
	shown := pkg.LastLines(output, reportLines)
	var depends, conflicts []string
	who := "it"
	for line := range strings.Lines(output) {
		f := relation.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if f == nil {
			continue
		}
		if f[1] != "" {
			who = f[1]
		}
		if f[2] == "Conflicts" || f[2] == "Breaks" {
			conflicts = append(conflicts, f[3])
		} else {
			depends = append(depends, who+" needs "+f[3])
		}
	}
	if len(depends) == 0 && len(conflicts) > 0 {
		return resource.Failed(mesh.ReasonWouldRemove, nil, "it excludes what is installed or declared, which would have to go: %s; nothing was done", strings.Join(conflicts, ", ")).WithOutput(shown)
	}
	if len(depends) == 0 {
		depends = []string{"what it depends on"}
	}
	return resource.Failed(mesh.ReasonUnmet, nil, "what is needed is not to be had: %s; nothing was done", strings.Join(depends, ", ")).WithOutput(shown)
}

// refreshFailures reports whether apt-get update could not fetch or verify
// everything, names what, and says whether a signature was at fault. That apt
// tried something optional in vain (an Err line that becomes an Ign line) is no
// failure; what it complains of at the end is.
func refreshFailures(output string) (failed []string, reason mesh.Reason) {
	reason = mesh.ReasonRepository
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "E: ") && !(strings.HasPrefix(line, "W: ") && alarming(line)) {
			continue
		}
		if strings.HasPrefix(line, hookFailed) || line == "E: Sub-process returned an error code" {
			continue
		}
		for _, r := range refreshReasons {
			if slices.ContainsFunc(r.marks, func(mark string) bool { return strings.Contains(line, mark) }) {
				reason = r.reason
			}
		}
		if about := line[len("E: "):]; !slices.Contains(failed, about) && len(failed) < failuresShown {
			failed = append(failed, about)
		}
	}
	return failed, reason
}

// hookFailed begins the complaint about a hook that apt runs before or after it
// fetches the indexes, and whose failure does not keep it from that.
const hookFailed = "E: Problem executing scripts APT::Update::"

// failedHook returns the complaint about a hook; empty: none failed.
func failedHook(output string) string {
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, hookFailed) {
			return line[len("E: "):]
		}
	}
	return ""
}

// failuresShown bounds how many complaints of a refresh are kept.
const failuresShown = 20

// refreshReasons are looked for in each complaint of apt-get update.
var refreshReasons = []struct {
	reason mesh.Reason
	marks  []string
}{
	{mesh.ReasonNoSpace, []string{"No space left on device", "enough free space"}},
	{mesh.ReasonReadOnly, []string{"Read-only file system"}},
	{mesh.ReasonNotCurrent, []string{"is not valid yet", "is expired"}},
	{mesh.ReasonRepositoryChanged, []string{"changed its '"}},
	{mesh.ReasonSignature, []string{"GPG error", "NO_PUBKEY", "is not signed", "signature", "Hash Sum mismatch", "File has unexpected size"}},
}

var address = regexp.MustCompile(`(?:https?|ftp|file|copy|mirror\+\w+|cdrom|tor\+\w+)://?[^\s']+`)

// someIndexes begins what apt says at the end of all that it could not fetch.
const someIndexes = "Some index files failed"

// addresses takes the addresses out of complaints, and reports whether each
// complaint names one, and none was left out.
func addresses(complaints []string) (all []string, each bool) {
	each = len(complaints) < failuresShown
	for _, c := range complaints {
		found := address.FindAllString(c, -1)
		all = append(all, found...)
		each = each && (len(found) > 0 || strings.HasPrefix(c, someIndexes))
	}
	return all, each && len(all) > 0
}

// alarming reports whether a warning of apt-get update means that something
// was not fetched. Others are about style.
func alarming(line string) bool {
	for _, mark := range []string{"Failed to fetch", someIndexes, "GPG error", "error occurred during the signature verification", "is not valid yet", "is expired", "is not signed", "does not have a Release file", "changed its"} {
		if strings.Contains(line, mark) {
			return true
		}
	}
	return false
}
