// Package apt reads Debian binary packages and writes and reads the indexes of
// an apt archive: Packages, Release and what they promise about each other.
//
// A package that is read here is somebody else's file: everything about it is
// bounded, and what a Debian package may not be is refused with ErrMalformed.
// The package does not touch the file system, does not sign, does not keep a
// pool and does not decide which package belongs in which suite.
package apt

import (
	"errors"
	"fmt"
)

// ErrMalformed is in the error of every input that is not what it has to be.
// The text before it says what is wrong, in words for the person who sent it.
var ErrMalformed = errors.New("not a valid Debian package")

// ErrTooLarge is in the error of an input that goes beyond one of the Limits.
var ErrTooLarge = errors.New("beyond the limit")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrMalformed)
}

// Limits bound what reading one package may cost. A zero field means its default.
type Limits struct {
	Control  int64 // bytes of the control file; 1 MiB
	Scripts  int64 // bytes of the unpacked control archive; 16 MiB
	Unpacked int64 // bytes of the unpacked data archive; 64 GiB
	Entries  int   // entries of the data archive; 2,000,000
}

func (l Limits) orDefaults() Limits {
	if l.Control == 0 {
		l.Control = 1 << 20
	}
	if l.Scripts == 0 {
		l.Scripts = 16 << 20
	}
	if l.Unpacked == 0 {
		l.Unpacked = 64 << 30
	}
	if l.Entries == 0 {
		l.Entries = 2_000_000
	}
	return l
}
