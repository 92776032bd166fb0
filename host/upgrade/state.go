package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	mesh "github.com/meshctl/mesh"
)

// state is what must be known about upgrades of the host whichever version of
// it runs. It is one file beside the stores, since each version has its own.
type state struct {
	Phase Phase `json:"phase"`
	// Intent is the upgrade that goes on. Nil when settled.
	Intent *intent `json:"intent,omitempty"`
	// Last is how the latest one ended. Nil: there was none.
	Last *mesh.UpgradeRecord `json:"last,omitempty"`
	// Ended counts the endings that are on record here.
	Ended uint64 `json:"ended,omitempty"`
	// Untold lists endings that a version on trial came to, oldest first. Its store
	// is dropped when it is put back, so the confirmed version reports them.
	Untold []mesh.UpgradeRecord `json:"untold,omitempty"`
	// Refused lists what was undone here, oldest first.
	Refused []refusal `json:"refused,omitempty"`
	// Reported is the digest of the rollback script's record that was reported
	// last. Empty: none was.
	Reported string `json:"reported,omitempty"`
}

// intent is one upgrade, written before anything is done.
type intent struct {
	From       string          `json:"from"`
	To         string          `json:"to"`
	Generation mesh.Generation `json:"generation"`
	// Digest is the SHA-256 of the package file. Empty: somebody else installed
	// it, and the file is not known.
	Digest string `json:"digest,omitempty"`
	// Named is the write that asks for it. See naming. Empty: none does.
	Named string `json:"named,omitempty"`
	// Elsewhere: somebody else installed it.
	Elsewhere bool      `json:"elsewhere,omitempty"`
	Began     time.Time `json:"began"`
	// Step and Why are set while it is being put back.
	Step string `json:"step,omitempty"`
	Why  string `json:"why,omitempty"`
}

// refusal is a version that was undone and is not tried again until a write
// names it that is another one than Named.
type refusal struct {
	Version string `json:"version"`
	// Digest is the SHA-256 of its package file. Empty: not known.
	Digest string      `json:"digest,omitempty"`
	Named  string      `json:"named,omitempty"`
	Ending mesh.Ending `json:"ending"`
	Why    string      `json:"why"`
	At     time.Time   `json:"at"`
}

// refusalsKept bounds the list.
const refusalsKept = 32

// stateLimit bounds the file, in bytes.
const stateLimit = 1 << 20

// naming identifies the write that names a version: the declaration and its
// revision.
func naming(want mesh.Resource) string {
	return fmt.Sprintf("%s@%d", want.From, want.Revision)
}

// refuses returns the refusal that stands against a package. A digest that is
// not known on one side is left out of the comparison.
func (s *state) refuses(version, digest, named string) *refusal {
	for i := len(s.Refused) - 1; i >= 0; i-- {
		r := &s.Refused[i]
		if r.Version != version || (r.Digest != "" && digest != "" && r.Digest != digest) {
			continue
		}
		if named != "" && named != r.Named {
			return nil
		}
		return r
	}
	return nil
}

// load reads the file. What cannot be read is moved aside and said: it must not
// keep a host from starting.
func load(path string) (state, error) {
	fresh := state{Phase: PhaseSettled}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	}
	var data []byte
	if err == nil && info.Size() > stateLimit {
		err = fmt.Errorf("it has %d bytes", info.Size())
	}
	if err == nil {
		data, err = os.ReadFile(path)
	}
	var s state
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil {
		_, known := phaseSteps[s.Phase]
		if !known || (s.Phase != PhaseSettled) != (s.Intent != nil) {
			err = fmt.Errorf("phase %q does not go with its intent", s.Phase)
		}
	}
	if err != nil {
		return fresh, errors.Join(fmt.Errorf("the record of upgrades in %s cannot be used and is kept as %s.damaged: %w", path, path, err), os.Rename(path, path+".damaged"))
	}
	return s, nil
}

// save replaces the file, durable when it returns nil.
func (s *state) save(path string) error {
	if over := len(s.Refused) - refusalsKept; over > 0 {
		s.Refused = s.Refused[over:]
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the record of upgrades: %w", err)
	}
	if err := writeWhole(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the record of upgrades: %w", err)
	}
	return nil
}

// writeWhole puts a file in place in one step, durable when it returns nil.
func writeWhole(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
