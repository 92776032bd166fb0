package control

import (
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	mesh "github.com/meshctl/mesh"
)

const (
	defaultTTL = time.Hour
	longestTTL = 30 * 24 * time.Hour
	labelLimit = 64
)

var labelName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,62}$`)

// checkRequest finds every fault of a request for a token.
func (c *Control) checkRequest(req TokenRequest) error {
	var ps mesh.Problems
	if req.Name != "" && !mesh.ValidNodeName(req.Name) {
		ps.Add("name", fmt.Sprintf("%q cannot be the name of a node: use lower-case letters, digits, dots and dashes, at most 63, beginning and ending with a letter or digit", bounded(req.Name, 80)))
	}
	if req.TTL < 0 || req.TTL > longestTTL {
		ps.Add("ttl", fmt.Sprintf("a token can be used for at most %v", longestTTL))
	}
	checkLabels(&ps, req.Labels)
	for i, a := range req.Addresses {
		if _, _, err := net.SplitHostPort(a); err != nil || strings.Contains(a, ",") {
			ps.Add(fmt.Sprintf("addresses[%d]", i), fmt.Sprintf("%q is not host:port", bounded(a, 80)))
		}
	}
	if len(ps) > 0 {
		return &mesh.Error{Code: mesh.CodeInvalid, Message: "no token was issued", Details: ps}
	}
	if req.Replaces != "" {
		if req.Name != "" && req.Name != req.Replaces {
			return mesh.Errorf(mesh.CodeInvalid, "a machine that replaces node %s takes its name; leave the name out", req.Replaces)
		}
		if _, exists := c.snapshot(req.Replaces); !exists {
			return noNode(req.Replaces)
		}
		return nil
	}
	if _, exists := c.snapshot(req.Name); exists && req.Name != "" {
		return mesh.Errorf(mesh.CodeConflict, "there is a node %s already; use --replaces %s if the machine takes its place, or another name", req.Name, req.Name)
	}
	return nil
}

// checkLabels adds every fault of labels that are to be set.
func checkLabels(ps *mesh.Problems, labels map[string]string) {
	if len(labels) > labelLimit {
		ps.Add("labels", fmt.Sprintf("a node has at most %d labels", labelLimit))
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		v := labels[k]
		if !labelName.MatchString(k) {
			ps.Add("labels", fmt.Sprintf("%q cannot be the name of a label: begin with a letter, go on with letters, digits, _ . and -, at most 63", bounded(k, 80)))
		}
		if len(v) > 255 || !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			ps.Add("labels", fmt.Sprintf("the value of the label %q must be at most 255 bytes of text without control characters", bounded(k, 80)))
		}
	}
}

func describeRequest(req TokenRequest, record TokenRecord) string {
	name := req.Name
	if req.Replaces != "" {
		name = "the place of " + req.Replaces
	}
	if name == "" {
		name = "a node named by its host"
	}
	detail := fmt.Sprintf("for %s, until %s", name, record.Expires.UTC().Format(time.RFC3339))
	for _, k := range slices.Sorted(maps.Keys(req.Labels)) {
		detail += fmt.Sprintf(", %s=%s", k, req.Labels[k])
	}
	return detail
}
