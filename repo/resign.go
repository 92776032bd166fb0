package repo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Resign signs every index again, and gives every rpm whose header another key
// signed the signature of the main key, all in one generation. prepare, which
// may change what the Signer signs with, runs first, while nothing else is
// published; its error ends the call and nothing is changed. The files of
// re-signed rpms get a new digest and stay the same packages.
func (r *Repo) Resign(ctx context.Context, prepare func() error) (uint64, error) {
	var again []*staged
	defer func() {
		for _, s := range again {
			s.discard()
		}
	}()
	return r.commit(ctx, func(d *draft) error {
		if err := prepare(); err != nil {
			return err
		}
		key := r.signer.Fingerprints()[0]
		done := map[string]*record{}
		for k := range d.parts() {
			for _, rec := range d.all(k) {
				if rec.Format != RPM || rec.SignedBy == key {
					continue
				}
				signed := done[rec.SHA256]
				if signed == nil {
					s, err := r.restage(d, rec)
					if err != nil {
						return fmt.Errorf("sign %s again: %w", rec.ID(), err)
					}
					again = append(again, s)
					delete(d.adding, rec.SHA256)
					d.adding[s.rec.SHA256] = s
					signed = s.rec
					done[rec.SHA256] = signed
				}
				d.exchange(k, rec, signed)
			}
			d.edit(k)
		}
		return syncFileSystem(r.staging())
	})
}

// exchange puts the same package in another file in place of rec.
func (d *draft) exchange(k partKey, rec, with *record) {
	e := d.edit(k)
	for i := range e.added {
		if e.added[i] == rec {
			e.added[i] = with
			return
		}
	}
	e.gone[rec] = true
	e.added = append(e.added, with)
}

// restage writes a file that is in the pool, or about to enter it, with the
// signature of the main key.
func (r *Repo) restage(d *draft, rec *record) (*staged, error) {
	path := r.filePath(rec)
	if s := d.adding[rec.SHA256]; s != nil {
		path = filepath.Join(s.dir, filepath.Base(rec.File))
	}
	from, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	dir, err := os.MkdirTemp(r.staging(), "upload-")
	if err != nil {
		return nil, fmt.Errorf("make staging directory: %w", err)
	}
	s := &staged{given: rec.ID(), dir: dir}
	if err := r.rewrite(s, from, rec); err != nil {
		s.discard()
		return nil, err
	}
	return s, nil
}

func (r *Repo) rewrite(s *staged, from *os.File, old *record) error {
	f, err := os.OpenFile(filepath.Join(s.dir, "incoming"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("create staged file: %w", err)
	}
	defer f.Close()
	body := buffered(from)
	defer release(body)
	rec, name, err := r.fillRPM(f, body, old.Published)
	if err != nil {
		return err
	}
	if rec.ID() != old.ID() || rec.Content != old.Content {
		return fmt.Errorf("the file in the pool is of another package, %s", rec.ID())
	}
	rec.Uploaded = old.Uploaded
	return r.finish(s, f, rec, name, syncLater)
}

// Refresh signs again what clients would stop to believe within half of
// Config.ValidFor. It does nothing when that is zero.
func (r *Repo) Refresh(ctx context.Context) error {
	if r.cfg.ValidFor <= 0 {
		return nil
	}
	_, err := r.commit(ctx, func(d *draft) error {
		now := r.cfg.Now()
		for k, p := range d.base.parts {
			if r.stale(p, now) {
				d.edit(k)
			}
		}
		return nil
	})
	return err
}

// stale reports whether a part has to be signed again for its validity.
func (r *Repo) stale(p *part, now time.Time) bool {
	if p.key.format != Deb {
		return false
	}
	if r.cfg.ValidFor <= 0 {
		return !p.validUntil.IsZero()
	}
	return p.validUntil.IsZero() || p.validUntil.Sub(now) < r.cfg.ValidFor/2 || p.validUntil.Sub(now) > r.cfg.ValidFor+maxSkew
}
