package apt

import (
	"strconv"
	"strings"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Architectures that dpkg knows and that a mesh can meet. A name that is not
// here is nearly always another tool's word for one that is (386, x86_64,
// arm64/v8), and apt would never look at the package.
var architectures = map[string]bool{
	"all": true, "amd64": true, "arm64": true, "armel": true, "armhf": true,
	"i386": true, "loong64": true, "mips64el": true, "mipsel": true,
	"ppc64el": true, "powerpc": true, "ppc64": true, "riscv64": true,
	"s390x": true, "sparc64": true, "x32": true,
}

// KnownArchitecture reports whether dpkg calls an architecture by this name.
func KnownArchitecture(s string) bool { return architectures[s] }

// checkName refuses package names that Debian policy does not allow.
func checkName(s string) error {
	if len(s) < 2 || len(s) > 128 || !isLowerAlnum(s[0]) {
		return malformed("the package name %q is not allowed", clip(s))
	}
	for i := range len(s) {
		if c := s[i]; !isLowerAlnum(c) && c != '+' && c != '-' && c != '.' {
			return malformed("the package name %q is not allowed", clip(s))
		}
	}
	return nil
}

// checkVersion refuses versions that dpkg would not parse. The version becomes
// part of a path, so it is also the guard against path tricks.
func checkVersion(s string) error {
	bad := malformed("the version %q is not allowed", clip(s))
	if s == "" || len(s) > 200 {
		return bad
	}
	rest := s
	epoch, after, hasEpoch := strings.Cut(s, ":")
	if hasEpoch {
		n, err := strconv.ParseInt(epoch, 10, 32)
		if err != nil || n < 0 || epoch[0] == '+' {
			return bad
		}
		rest = after
	}
	upstream, revision := rest, ""
	if i := strings.LastIndexByte(rest, '-'); i >= 0 {
		upstream, revision = rest[:i], rest[i+1:]
		if revision == "" {
			return bad
		}
	}
	if upstream == "" || upstream[0] < '0' || upstream[0] > '9' {
		return bad
	}
	for i := range len(upstream) {
		c := upstream[i]
		if !isAlnum(c) && !strings.ContainsRune(".+-~", rune(c)) && !(c == ':' && hasEpoch) {
			return bad
		}
	}
	for i := range len(revision) {
		if c := revision[i]; !isAlnum(c) && !strings.ContainsRune(".+~", rune(c)) {
			return bad
		}
	}
	return nil
}

func isLowerAlnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
func isAlnum(c byte) bool      { return isLowerAlnum(c) || c >= 'A' && c <= 'Z' }

// clip keeps hostile text short in messages.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// FileName returns the conventional file name of a package: without the epoch,
// and without colons, which some file systems and servers do not carry.
func FileName(name, version, arch string) string {
	if _, after, ok := strings.Cut(version, ":"); ok {
		version = strings.ReplaceAll(after, ":", ".")
	}
	return name + "_" + version + "_" + arch + ".deb"
}
