package api

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// partPackage is the form name of a file in a publication.
const partPackage = "package"

// publish takes the files of a multipart request whole onto disk, then hands
// all of them to the repository in one step. Nothing is kept of a request that
// did not arrive whole.
func (s *Server) publish(r *http.Request, by control.Caller) (any, error) {
	suite := r.URL.Query().Get("suite")
	if suite == "" {
		suite = DefaultSuite
	}
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "multipart/form-data" || params["boundary"] == "" {
		return nil, mesh.Errorf(mesh.CodeInvalid, "packages are published as multipart/form-data; nothing was published")
	}
	dir, err := os.MkdirTemp(s.cfg.SpoolDir, "upload-*")
	if err != nil {
		return nil, fmt.Errorf("make room for an upload: %w", err)
	}
	sp := &spool{dir: dir, limit: s.cfg.MaxPackage}
	defer func() {
		if err := sp.close(); err != nil {
			s.cfg.Log.Warn("upload not cleared away", "dir", dir, "error", err)
		}
	}()
	body := http.MaxBytesReader(nil, r.Body, s.cfg.MaxUpload)
	if err := sp.take(multipart.NewReader(body, params["boundary"])); err != nil {
		return nil, err
	}
	if len(sp.uploads) == 0 {
		return nil, mesh.Errorf(mesh.CodeInvalid, "no file was sent; nothing was published")
	}
	for i := range sp.uploads {
		sp.uploads[i].Allow = by.MayPublish
	}
	files, err := s.cfg.Publisher.Publish(r.Context(), suite, sp.uploads)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Operator.RecordRepository(r.Context(), by, "packages published", publishDetail(suite, files)); err != nil {
		s.cfg.Log.Error("publication not recorded", "suite", suite, "error", err)
		return nil, mesh.Errorf(mesh.CodeInternal, "the packages are published, but the audit log could not be written; see `journalctl -u mesh-control`, then publish the same files again")
	}
	return Publication{Suite: suite, Files: list(files)}, nil
}

// spool holds the files of one upload.
type spool struct {
	dir string
	// limit is the size of the largest file, in bytes.
	limit   int64
	files   []*os.File
	uploads []Upload
}

func (sp *spool) take(form *multipart.Reader) error {
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return brokenUpload(err)
		}
		name := part.FileName()
		switch {
		case part.FormName() != partPackage || name == "":
			return mesh.Errorf(mesh.CodeInvalid, "the upload has a part %q; every part is a file named %q; nothing was published", part.FormName(), partPackage)
		case len(sp.uploads) == maxFiles:
			return mesh.Errorf(mesh.CodeInvalid, "more than %d files at once; nothing was published", maxFiles)
		}
		f, err := os.OpenFile(filepath.Join(sp.dir, fmt.Sprintf("%d", len(sp.files))), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("make room for an upload: %w", err)
		}
		sp.files = append(sp.files, f)
		out := &sink{w: f}
		size, err := io.Copy(out, io.LimitReader(part, sp.limit+1))
		if out.err != nil {
			return fmt.Errorf("keep an upload: %w", out.err)
		}
		if err != nil {
			return brokenUpload(err)
		}
		if size > sp.limit {
			return mesh.Errorf(mesh.CodeInvalid, "%s is larger than %d MiB, the largest package that is taken here; see repository_max_package_mib; nothing was published", name, sp.limit>>20)
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("go back in an upload: %w", err)
		}
		sp.uploads = append(sp.uploads, Upload{Name: name, Body: f, Size: size})
	}
}

// sink remembers that it was the writing that went wrong.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.err = err
	return n, err
}

func brokenUpload(err error) error {
	if tooLong := new(http.MaxBytesError); errors.As(err, &tooLong) {
		return tooLong
	}
	return mesh.Errorf(mesh.CodeInvalid, "the upload did not arrive whole: %w; nothing was published, send it again", err)
}

func (sp *spool) close() error {
	var errs []error
	for _, f := range sp.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(sp.dir))...)
}

func publishDetail(suite string, files []Published) string {
	lines := make([]string, len(files))
	for i, f := range files {
		lines[i] = fmt.Sprintf("%s %s %s %s (%s)", f.Format, f.Name, f.Version, f.Arch, f.Outcome)
	}
	return suite + ": " + strings.Join(lines, ", ")
}
