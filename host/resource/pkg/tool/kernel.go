package tool

import "golang.org/x/sys/unix"

// KernelRelease is the release of the running kernel, as uname -r writes it.
// Empty when the kernel does not say.
func KernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
