// Package rpm reads rpm files, puts the repository's signature into their
// signature header, and writes and reads the metadata of an rpm repository:
// primary, filelists, other and repomd.xml.
//
// A file that is read here is somebody else's: everything about it is bounded,
// and what an rpm may not be is refused with ErrMalformed. The package does not
// touch the file system, holds no key, does not keep a pool and does not decide
// which package belongs in which suite.
package rpm

import (
	"errors"
	"fmt"
)

// ErrMalformed is in the error of every input that is not what it has to be.
// The text before it says what is wrong, in words for the person who sent it.
var ErrMalformed = errors.New("not a valid rpm package")

// ErrTooLarge is in the error of an input that goes beyond one of the limits.
var ErrTooLarge = errors.New("beyond the limit")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrMalformed)
}
