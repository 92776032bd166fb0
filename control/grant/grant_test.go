package grant_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/grant"
)

func open(t *testing.T, dir string) *grant.Repository {
	t.Helper()
	r, err := grant.Open(dir, func() []string { return []string{"http://192.0.2.1:7080", "http://[2001:db8::1]:7080"} })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func give(t *testing.T, r *grant.Repository, h control.Holder) control.Credential {
	t.Helper()
	c, err := r.Grant(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func holder(t *testing.T, r *grant.Repository, c control.Credential) control.Holder {
	t.Helper()
	h, err := r.Check(t.Context(), c)
	if err != nil && mesh.CodeOf(err) != mesh.CodeDenied {
		t.Fatalf("a credential that is nobody's gave %v, want it denied", err)
	}
	return h
}

var (
	web   = control.Holder{Node: "web-1", Identity: "ssh-ed25519 AAAA"}
	again = control.Holder{Node: "web-1", Identity: "ssh-ed25519 BBBB"}
	db    = control.Holder{Node: "db-1", Identity: "ssh-ed25519 CCCC"}
	token = control.Holder{Token: mesh.SecretHash("secret")}
)

// Shows: M31
func TestEachHolderHasACredentialOfItsOwnThatEndsAlone(t *testing.T) {
	r := open(t, t.TempDir())
	of := map[control.Holder]control.Credential{}
	secrets := map[string]bool{}
	for _, h := range []control.Holder{web, again, db, token} {
		of[h] = give(t, r, h)
		secrets[of[h].Secret] = true
		if got := holder(t, r, of[h]); got != h {
			t.Errorf("the credential of %+v is that of %+v", h, got)
		}
	}
	if len(secrets) != 4 {
		t.Errorf("four holders have %d secrets", len(secrets))
	}
	if err := r.Revoke(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	for h, c := range of {
		if got := holder(t, r, c); (got == h) == (h == web) {
			t.Errorf("after the end of %+v the credential of %+v is that of %+v", web, h, got)
		}
	}
	mixed := control.Credential{User: of[db].User, Secret: of[again].Secret}
	if got := holder(t, r, mixed); got != (control.Holder{}) {
		t.Errorf("the secret of one node opens as another: %+v", got)
	}
}

func TestARestartGivesTheSameCredentialAndUntilThenItOpensNothing(t *testing.T) {
	dir := t.TempDir()
	before := give(t, open(t, dir), web)

	r := open(t, dir)

	if got := holder(t, r, before); got != (control.Holder{}) {
		t.Errorf("before it was granted again the credential is that of %+v", got)
	}
	if after := give(t, r, web); after != before {
		t.Errorf("after a restart the credential is another one")
	}
	if other := give(t, open(t, t.TempDir()), web); other.Secret == before.Secret {
		t.Error("two control planes give the same credential")
	}
}

func TestTheFilesAreSensitiveAndInTheFormOfThePackageManager(t *testing.T) {
	r := open(t, t.TempDir())
	c := give(t, r, web)
	for manager, want := range map[string]string{
		"apt":  "machine http://192.0.2.1:7080 login web-1 password " + c.Secret + "\nmachine http://[2001:db8::1]:7080 login web-1 password " + c.Secret + "\n",
		"dnf":  "web-1\n" + c.Secret + "\n",
		"dnf5": "web-1\n" + c.Secret + "\n",
		"none": "",
	} {
		var all string
		for _, f := range r.Deliver(c, mesh.Profile{PackageManager: manager}) {
			if !f.File.Sensitive || f.File.Mode != "0600" {
				t.Errorf("%s: %s is %+v, want it sensitive and for root alone", manager, f.Name, f.File)
			}
			all += string(f.File.Content)
		}
		if !strings.HasSuffix(all, want) || (want == "") != (all == "") {
			t.Errorf("%s is given\n%s\nwant\n%s", manager, all, want)
		}
	}
}

func TestADamagedSecretIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	path := filepath.Join(dir, "grants.secret")
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}

	_, err := grant.Open(dir, nil)

	kept, readErr := os.ReadFile(path)
	if err == nil || readErr != nil || string(kept) != "half" || !strings.Contains(err.Error(), "backup") {
		t.Errorf("a damaged secret gives %v, and the file holds %q (%v)", err, kept, readErr)
	}
}
