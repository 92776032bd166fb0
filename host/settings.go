package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"

	mesh "github.com/meshctl/mesh"
)

const (
	defaultDrift = 15 * time.Minute
	leastDrift   = 10 * time.Second
)

// Settings is /etc/mesh/host.yaml. Enrolment writes it; an admin may set the
// drift interval.
type Settings struct {
	// Addresses are host:port pairs of the control plane, tried in order.
	Addresses []string `yaml:"addresses,omitempty"`
	// Fingerprint of the control plane's key, as SHA256:...
	Fingerprint string `yaml:"fingerprint,omitempty"`
	// Node is the name of this machine in the mesh. Empty: not enrolled.
	Node string `yaml:"node,omitempty"`
	// DriftInterval is how often the machine is looked at. Zero: 15 minutes.
	DriftInterval Duration `yaml:"drift_interval,omitempty"`
	// LogLevel is debug, info, warn or error. Empty: info.
	LogLevel string `yaml:"log_level,omitempty"`
}

// Enrolled reports whether this machine knows its mesh.
func (s Settings) Enrolled() bool { return s.Node != "" }

// Duration is a time.Duration written as in "15m".
type Duration time.Duration

func (d Duration) orDefault(def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return time.Duration(d)
}

// UnmarshalYAML reads "15m".
func (d *Duration) UnmarshalYAML(node *yaml.Node) error {
	parsed, err := time.ParseDuration(node.Value)
	if err != nil {
		// In this form it is listed with whatever else is wrong.
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is not a duration; write it as in 15m", node.Line, node.Value)}}
	}
	*d = Duration(parsed)
	return nil
}

// MarshalYAML writes "15m0s".
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }

// LoadSettings reads the file. One that is not there gives empty settings.
// Everything that is wrong is found at once.
func LoadSettings(file string) (Settings, error) {
	var s Settings
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read settings: %w", err)
	}
	ps := s.decode(data)
	ps = append(ps, s.check()...)
	if len(ps) == 0 {
		return s, nil
	}
	for i := range ps {
		ps[i].File = file
	}
	return Settings{}, &mesh.Error{Code: mesh.CodeInvalid, Message: "the settings of this host cannot be used:", Details: ps}
}

// decode reads what can be read, and returns what cannot.
func (s *Settings) decode(data []byte) mesh.Problems {
	var ps mesh.Problems
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	err := dec.Decode(s)
	var types *yaml.TypeError
	switch {
	case err == nil || errors.Is(err, io.EOF):
	case errors.As(err, &types):
		for _, finding := range types.Errors {
			ps.Add("", finding)
		}
	default:
		ps.Add("", err.Error())
	}
	return ps
}

// check returns what is wrong with values that could be read.
func (s *Settings) check() mesh.Problems {
	var ps mesh.Problems
	if s.Enrolled() {
		if _, err := mesh.ParseFingerprint(s.Fingerprint); err != nil {
			ps.Add("fingerprint", err.Error()+"; enrol again with a token")
		}
		if len(s.Addresses) == 0 {
			ps.Add("addresses", "an enrolled host needs those of its control plane; enrol again with a token")
		}
		if !mesh.ValidNodeName(s.Node) {
			ps.Add("node", fmt.Sprintf("%q is not a valid node name; enrol again with a token", s.Node))
		}
	}
	if s.DriftInterval != 0 && time.Duration(s.DriftInterval) < leastDrift {
		ps.Add("drift_interval", fmt.Sprintf("the least is %s", leastDrift))
	}
	if _, err := s.Level(); err != nil {
		ps.Add("log_level", err.Error())
	}
	return ps
}

// Level is the least level that is logged.
func (s Settings) Level() (slog.Level, error) {
	var l slog.Level
	if s.LogLevel == "" {
		return slog.LevelInfo, nil
	}
	if err := l.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return l, fmt.Errorf("%q is none of debug, info, warn and error", s.LogLevel)
	}
	return l, nil
}

// SaveSettings replaces the file, durable when it returns nil.
func SaveSettings(file string, s Settings) error {
	data, err := yaml.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the settings: %w", err)
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(file)+".new-*")
	if err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write settings: %w", err), os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
