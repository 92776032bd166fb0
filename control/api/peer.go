package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// AdminGroup is the group whose members may use the operator's socket.
const AdminGroup = "mesh-admin"

// Peer is the process at the other end of a unix socket, as the kernel knew it
// when it connected.
type Peer struct {
	UID int
	// GIDs are the primary and the supplementary groups.
	GIDs []int
}

// Admission says who may come in.
type Admission struct {
	// Self is the user id of this process: who runs it holds its store anyway.
	Self int
	// AdminGID is the id of the group mesh-admin. Negative: there is no such
	// group on this machine, and nobody is a member of it.
	AdminGID int
}

// Admit returns as whom a peer acts, or a *mesh.Error with mesh.CodeDenied.
func (a Admission) Admit(p Peer) (control.Caller, error) {
	name := fmt.Sprintf("uid %d", p.UID)
	if p.UID == 0 {
		name = "root"
	}
	member := a.AdminGID >= 0 && slices.Contains(p.GIDs, a.AdminGID)
	if p.UID != 0 && p.UID != a.Self && !member {
		return control.Caller{}, mesh.Errorf(mesh.CodeDenied,
			"%s may not use this control plane; run meshctl as root, or add the user to group %s and log in again", name, AdminGroup)
	}
	return control.Caller{Name: name, Door: control.DoorSocket, Role: control.RoleAdmin}, nil
}

// peerOf asks the kernel who is at the other end of c.
func peerOf(c net.Conn) (Peer, error) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("%T is not a unix socket and has no peer credentials", c)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("reach the socket: %w", err)
	}
	var (
		cred   *unix.Ucred
		groups []int
		inner  error
	)
	err = raw.Control(func(fd uintptr) {
		if cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		groups, inner = peerGroups(int(fd))
	})
	if err := errors.Join(err, inner); err != nil {
		return Peer{}, fmt.Errorf("read peer credentials: %w", err)
	}
	return Peer{UID: int(cred.Uid), GIDs: append([]int{int(cred.Gid)}, groups...)}, nil
}

// peerGroups reads the supplementary groups of the peer. The kernel has them
// whatever service the accounts come from.
func peerGroups(fd int) ([]int, error) {
	gids := make([]uint32, 64)
	for {
		length := uint32(len(gids) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&length)), 0)
		switch {
		case errno == 0:
			groups := make([]int, 0, length/4)
			for _, gid := range gids[:length/4] {
				groups = append(groups, int(gid))
			}
			return groups, nil
		case errno == unix.ERANGE && int(length) > len(gids)*4 && length <= 65536*4:
			gids = make([]uint32, (length+3)/4)
		case errno == unix.ENOPROTOOPT:
			return nil, nil // a kernel before 4.13: the primary group has to do
		default:
			return nil, errno
		}
	}
}

type callerKey struct{}

// Known is a connection whose other end proved who it is on the way here.
type Known interface {
	net.Conn
	// Caller returns as whom the other end acts now, or as a *mesh.Error why it
	// may not act any more. It is asked for every request.
	Caller() (control.Caller, error)
}

// admitted says what the door found out: a caller, or why there is none.
type admitted func() (control.Caller, error)

func callerOf(ctx context.Context) (control.Caller, error) {
	who, ok := ctx.Value(callerKey{}).(admitted)
	if !ok {
		return control.Caller{}, errors.New("the request came through no door")
	}
	return who()
}
