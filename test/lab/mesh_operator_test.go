package lab_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/mesh/internal/sshkey"
	"github.com/meshctl/mesh/test/lab"
)

func TestAnOperatorOnAnotherMachineDeclaresOverSSHAndIsShutOutAtOnce(t *testing.T) {
	f := theMesh(t)
	h, ctx := f.Lab.Host("apt-1"), lab.TestContext(t)
	dir := t.TempDir()
	key, err := sshkey.LoadOrCreate(sshkey.Kept{Dir: dir, File: "op", Comment: "op", Lost: "make another"})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Control.WriteFile(ctx, "/root/op.pub", []byte(sshkey.Authorized(key.PublicKey())+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	settings, err := f.Meshctl(ctx, "operator", "add", "op", "--key", "/root/op.pub", "--role", "publisher", "--declaration", "op-apt-1", "--package", "fx-*")
	if err != nil {
		t.Fatal(err)
	}
	must(t, h, "apt-get install -y meshctl && mkdir -p /root/.config/mesh")
	if err := h.CopyIn(ctx, filepath.Join(dir, "op"), "/root/op"); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile(ctx, "/root/.config/mesh/meshctl.yaml", []byte(settings+"identity: /root/op\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile(ctx, "/root/op.yaml", []byte(only("op", h, "  - file: /etc/fx-op\n    content: \"from elsewhere\\n\"\n")), 0o644); err != nil {
		t.Fatal(err)
	}

	env := "chmod 600 /root/op; export HOME=/root; "
	if out := must(t, h, env+"meshctl nodes && meshctl declare --wait 30s /root/op.yaml"); !strings.Contains(out, controlHost) || !strings.Contains(out, "applied 1") {
		t.Errorf("an operator on another machine sees\n%s", out)
	}
	wantContent(t, h, "/etc/fx-op", "from elsewhere\n")
	if out, err := h.Sh(ctx, env+"meshctl node revoke dnf-1"); err == nil || !strings.Contains(out.Stderr, "needs admin") {
		t.Errorf("a publisher who revokes a node is answered with %v\n%s", err, out.Stderr)
	}
	if out, err := f.Meshctl(ctx, "audit", "--limit", "1"); err != nil || !strings.Contains(out, "op ") || !strings.Contains(out, "ssh") || !strings.Contains(out, "SHA256:") {
		t.Errorf("the audit log does not say who wrote it: %v\n%s", err, out)
	}
	if _, err := f.Meshctl(ctx, "operator", "remove", "op"); err != nil {
		t.Fatal(err)
	}
	if out, err := h.Sh(ctx, env+"meshctl nodes"); err == nil || !strings.Contains(out.Stderr, "no operator is registered") {
		t.Errorf("an operator who was removed is answered with %v\n%s", err, out.Stderr)
	}
	undeclare(t, f, h, "op")
	applied(t, f, h)
	must(t, h, "apt-get remove -y meshctl; rm -r /root/.config/mesh /root/op")
}
