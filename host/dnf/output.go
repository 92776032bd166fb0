package dnf

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// readTrial reads how dnf --assumeno ended: with a transaction that it did not
// do, with nothing to do, or with an error.
func readTrial(r pkg.Reading) (pkg.Plan, error) {
	both := r.Stdout + "\n" + r.Stderr
	if strings.Contains(r.Stdout, "Transaction Summary") {
		return parsePlan(r.Stdout)
	}
	if r.ExitStatus == 0 {
		return pkg.Plan{}, nil
	}
	return pkg.Plan{}, classify(both, r.ExitStatus)
}

// section is a heading of the table that dnf prints.
type section string

const (
	sectionNone    section = ""
	sectionInstall section = "install"
	sectionRemove  section = "remove"
	sectionSkip    section = "skip"
)

var headings = []struct {
	begins string
	is     section
}{
	{"Installing", sectionInstall},
	{"Upgrading", sectionInstall},
	{"Downgrading", sectionInstall},
	{"Reinstalling", sectionInstall},
	{"Removing", sectionRemove},
	{"Skipping", sectionSkip},
	{"Changing reason", sectionSkip},
}

// parsePlan reads the table of dnf 4 or dnf5. A row begins with one space, what
// it replaces stands below it further in, and a row that was too long goes on
// there too. A heading that is not known makes the plan unusable.
func parsePlan(output string) (pkg.Plan, error) {
	var plan pkg.Plan
	var row []string
	current := sectionNone
	flush := func() error {
		defer func() { row = nil }()
		if row == nil || current == sectionSkip || current == sectionNone {
			return nil
		}
		if len(row) < 4 {
			return fmt.Errorf("read dnf's plan: the row %q is not understood", strings.Join(row, " "))
		}
		// dnf5 writes an epoch of zero, rpm does not.
		step := pkg.Step{Name: row[0], Arch: row[1], Version: strings.TrimPrefix(row[2], "0:")}
		if current == sectionRemove {
			plan.Remove = append(plan.Remove, step)
		} else {
			plan.Install = append(plan.Install, step)
		}
		return nil
	}
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, " \r\n")
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "Transaction Summary"):
			return plan, flush()
		case len(fields) == 0:
			if err := flush(); err != nil {
				return pkg.Plan{}, err
			}
		case line[0] != ' ':
			if err := flush(); err != nil {
				return pkg.Plan{}, err
			}
			next, err := heading(line, current)
			if err != nil {
				return pkg.Plan{}, err
			}
			current = next
		case fields[0] == "replacing":
			if err := flush(); err != nil {
				return pkg.Plan{}, err
			}
			if step, other := replaced(fields, plan.Install); other {
				plan.Remove = append(plan.Remove, step)
			}
		case strings.HasPrefix(line, "  "):
			row = append(row, fields...)
		default:
			if err := flush(); err != nil {
				return pkg.Plan{}, err
			}
			row = fields
		}
	}
	return plan, flush()
}

// heading reads a line that is not indented. Before the first heading, and for
// rulers and column titles, the section stays.
func heading(line string, current section) (section, error) {
	if !strings.HasSuffix(line, ":") {
		return current, nil
	}
	for _, h := range headings {
		if strings.HasPrefix(line, h.begins) {
			return h.is, nil
		}
	}
	if strings.HasPrefix(line, "Enabling module") || strings.HasPrefix(line, "Disabling module") || strings.HasPrefix(line, "Switching module") || strings.HasPrefix(line, "Resetting module") {
		return current, resource.Failed(mesh.ReasonModule, nil, "it is only in a module stream that is not enabled on this node, and the mesh changes no streams")
	}
	if current == sectionNone {
		return current, nil
	}
	return current, resource.Failed(mesh.ReasonTool, nil, "dnf's plan has a part that is not understood: %q; nothing was done", line)
}

// replaced reads what a row replaces, and whether that is another package than
// the one that replaces it.
func replaced(fields []string, above []pkg.Step) (pkg.Step, bool) {
	if len(fields) < 3 {
		return pkg.Step{}, false
	}
	var step pkg.Step
	if len(fields) == 3 {
		// dnf 4: name.arch version.
		step = pkg.Step{Name: fields[1], Version: fields[2]}
		if i := strings.LastIndexByte(fields[1], '.'); i > 0 {
			step.Name, step.Arch = fields[1][:i], fields[1][i+1:]
		}
	} else {
		step = pkg.Step{Name: fields[1], Arch: fields[2], Version: fields[3]}
	}
	same := len(above) > 0 && above[len(above)-1].Name == step.Name
	return step, !same
}

// verdict maps what dnf writes, in the C locale, to a reason. It only refines
// what is reported of a failure that the exit status told already.
type verdict struct {
	reason mesh.Reason
	marks  []string
	says   string
}

var verdicts = []verdict{
	{mesh.ReasonModule, []string{"filtered out by modular filtering"}, "it is only in a module stream that is not enabled on this node"},
	{mesh.ReasonHeld, []string{"matches only excluded packages", "filtered out by exclude filtering", "filtered out by exclude", "versionlock"}, "the admin of this machine excludes or locks it"},
	{mesh.ReasonProtected, []string{"removing the following protected packages"}, "it would remove what the system cannot do without"},
	{mesh.ReasonNotAvailable, []string{"Unable to find a match", "No match for argument", "There are no enabled repositories"}, "no repository of this node offers it"},
	{mesh.ReasonSignature, []string{"GPG check FAILED", "repomd.xml GPG signature verification error", "is not signed", "Signature verification", "Bad GPG signature", "you do not have any GPG public keys installed", "checksum doesn't match", "checksum does not match"}, "a signature or checksum is wrong"},
	{mesh.ReasonReadOnly, []string{"Read-only file system"}, "a file system is mounted read-only"},
	{mesh.ReasonNoSpace, []string{"No space left on device", "Disk Requirements", "At least ", "more space on the", "more space needed on the"}, "there is not enough space"},
	{mesh.ReasonNoSpace, []string{"Curl error (23)"}, "what was fetched could not be written, as happens when there is no room"},
	{mesh.ReasonRepository, []string{"Failed to download metadata", "Cannot download repomd.xml", "Error downloading packages", "Failed to download packages", "Cannot prepare internal mirrorlist", "Status code: "}, "a repository could not be reached"},
	{mesh.ReasonSignature, []string{"Curl error (37)", "Failed to retrieve GPG key", "cannot open file: (2)"}, "the key that it would be checked with is not to be had"},
}

var lockMarks = []string{"Failed to obtain the transaction lock", "Failed to obtain rpm transaction lock", "can't create transaction lock", "Failed to acquire lock", "Failed to obtain the lock", "already locked by", "lock was obtained by another"}

// lockStatus is the status with which dnf 4 says that its lock is held.
const lockStatus = 200

var problemLine = regexp.MustCompile(`(?m)^\s*Problem(?: \d+)?: `)

var excluded = regexp.MustCompile(`package (\S+) (?:from \S+ )?is filtered out by exclude`)

var noMatch = regexp.MustCompile(`(?:Unable to find a match|No match for argument): (\S+)`)

func classify(output string, status int) error {
	last := pkg.LastLines(output, reportLines)
	if locked(output, status) {
		return resource.Deferred(mesh.ReasonLocked, nil, "somebody else holds the lock of the package manager; it is tried again").WithOutput(last)
	}
	if f := fileConflict.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonFileConflict, nil, "it holds %s, which belongs to %s; nothing is overwritten", f[1], f[2]).WithOutput(last)
	}
	for _, v := range verdicts {
		if !slices.ContainsFunc(v.marks, func(mark string) bool { return strings.Contains(output, mark) }) {
			continue
		}
		if f := noMatch.FindStringSubmatch(output); f != nil && v.reason == mesh.ReasonNotAvailable {
			return resource.Failed(v.reason, nil, "%s is not in any repository of this node", f[1]).WithOutput(last)
		}
		if f := excluded.FindStringSubmatch(output); f != nil && v.reason == mesh.ReasonHeld {
			return resource.Failed(v.reason, nil, "the admin of this machine excludes or locks %s; nothing was done", f[1]).WithOutput(last)
		}
		return resource.Failed(v.reason, nil, "dnf ended with %d: %s", status, v.says).WithOutput(last)
	}
	if at := problemLine.FindStringIndex(output); at != nil {
		return problem(output[at[0]:])
	}
	if f := scriptFailed.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonScript, nil, "the %%%s script of %s failed with %s", f[1], f[2], f[3]).WithOutput(last)
	}
	said := ""
	if f := errorLine.FindStringSubmatch(output); f != nil {
		said = " (" + f[1] + ")"
	}
	return resource.Failed(mesh.ReasonTool, nil, "dnf ended with %d%s; what it did is read from the database", status, said).WithOutput(last)
}

// locked reports whether somebody else held a lock. A script that meets the lock
// is one that failed, and something was done; a lock that the disk refuses is
// held by nobody.
func locked(output string, status int) bool {
	if scriptFailed.MatchString(output) || strings.Contains(output, "Read-only file system") || strings.Contains(output, "No space left on device") {
		return false
	}
	return status == lockStatus || slices.ContainsFunc(lockMarks, func(mark string) bool { return strings.Contains(output, mark) })
}

var refreshFailure = regexp.MustCompile(`(?:metadata (?:\(.*?\) )?for repo(?:sitory)?|Failed to synchronize cache for repo) ["'‘]?([^"'’: ]+)["'’]?`)

// refreshFailures lists the repositories that dnf makecache could not fetch or
// verify, and whether a signature was at fault.
func refreshFailures(output string) (failed []string, signature bool) {
	for line := range strings.Lines(output) {
		if strings.Contains(line, "GPG") || strings.Contains(line, "signature") {
			signature = signature || strings.Contains(line, "rror") || strings.Contains(line, "Bad") || strings.Contains(line, "FAILED")
		}
		signature = signature || strings.Contains(line, "checksum doesn't match") || strings.Contains(line, "checksum does not match")
		if !strings.Contains(line, "Error") && !strings.Contains(line, "Fail") {
			continue
		}
		f := refreshFailure.FindStringSubmatch(line)
		if f != nil && !slices.Contains(failed, f[1]) && len(failed) < 5 {
			failed = append(failed, f[1])
		}
	}
	return failed, signature
}
