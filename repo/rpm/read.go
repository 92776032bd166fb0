package rpm

import (
	"bufio"
	"bytes"
	"fmt"
	"html"
	"io"
	"strconv"
)

// Entry is what a primary document promises about one package.
type Entry struct {
	Name, Arch              string
	Epoch, Version, Release string
	SHA256                  string
	Size                    int64
	Href                    string
}

// maxFragment bounds one package's element in a primary document.
const maxFragment = 256 << 20

var packageEnd = []byte("</package>\n")

// ReadPrimary reads a primary document of this package's own making and calls
// each for every package, in order. It looks at nothing but what identifies a
// package and its file, which makes it cheap enough to run on every publish.
func ReadPrimary(r io.Reader, each func(Entry) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), maxFragment)
	sc.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.Index(data, packageEnd); i >= 0 {
			return i + len(packageEnd), data[:i], nil
		}
		if atEOF && len(data) > 0 {
			return len(data), data, nil
		}
		return 0, nil, nil
	})
	count, promised, closed := 0, -1, false
	for sc.Scan() {
		b := sc.Bytes()
		if promised < 0 {
			n, err := strconv.Atoi(between(b, ` packages="`, `"`))
			if err != nil {
				return fmt.Errorf("primary document: it does not say how many packages it holds")
			}
			promised = n
		}
		if !bytes.Contains(b, []byte(`<package type="rpm">`)) {
			closed = bytes.HasSuffix(b, []byte("</metadata>\n"))
			continue
		}
		count++
		e := Entry{
			Name:    between(b, "<name>", "<"),
			Arch:    between(b, "<arch>", "<"),
			Epoch:   between(b, `<version epoch="`, `"`),
			Version: between(b, ` ver="`, `"`),
			Release: between(b, ` rel="`, `"`),
			SHA256:  between(b, `pkgid="YES">`, "<"),
			Href:    between(b, `<location href="`, `"`),
		}
		size, err := strconv.ParseInt(between(b, `<size package="`, `"`), 10, 64)
		if err != nil || e.Name == "" || e.Version == "" || e.Href == "" || len(e.SHA256) != 64 {
			return fmt.Errorf("primary document: the element of %q is not complete", clip(e.Name))
		}
		e.Size = size
		if err := each(e); err != nil {
			return err
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("primary document: %w", err)
	}
	if count != promised || !closed {
		return fmt.Errorf("primary document: it promises %d packages and holds %d", promised, count)
	}
	return nil
}

// between returns the unescaped text after the first start and before the next
// end, or "".
func between(b []byte, start, end string) string {
	i := bytes.Index(b, []byte(start))
	if i < 0 {
		return ""
	}
	b = b[i+len(start):]
	j := bytes.Index(b, []byte(end))
	if j < 0 {
		return ""
	}
	return html.UnescapeString(string(b[:j]))
}
