package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/store"
)

const day = 24 * time.Hour

// short keeps little.
var short = control.Keep{Audit: 30 * day, Revisions: 3, Left: 60 * day}

func (p *plane) sweep() control.Swept {
	p.t.Helper()
	swept, err := p.Sweep(context.Background())
	if err != nil {
		p.t.Fatalf("sweep: %v", err)
	}
	return swept
}

// age makes all content as old as if it had been uploaded two days ago, and the
// control plane one that was started since.
func (p *plane) age() {
	p.t.Helper()
	old := time.Now().Add(-2 * day)
	err := filepath.WalkDir(filepath.Join(p.dir, "blobs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chtimes(path, old, old)
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.restart()
}

// large is a file whose content travels as a blob.
func large(path, content string) (mesh.DocumentResource, string) {
	r := file(path, content+string(bytes.Repeat([]byte("."), mesh.InlineLimit)))
	return r, r.File.SHA256
}

func (p *plane) has(sum string) bool {
	p.t.Helper()
	r, err := p.blobs.Open(context.Background(), sum)
	if errors.Is(err, control.ErrNotFound) {
		return false
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		p.t.Fatal(err)
	}
	return true
}

// Shows: M32
func TestContentStaysForANodeThatIsOffForAYearWhileItsDeclarationIsWrittenOver(t *testing.T) {
	p := newPlane(t)
	p.keep = short
	p.restart()
	off, other := join(p, "off-1", nil), join(p, "other-1", nil)
	r, sum := large("/srv/data", "what the node is to have")
	p.declare(doc("data", `name == "off-1"`, r))
	off.disconnect()
	var sums []string
	for i := range 12 {
		r, sum := large("/srv/other", fmt.Sprint("version ", i))
		p.declare(doc("other", `name == "other-1"`, r))
		other.apply()
		sums = append(sums, sum)
	}
	p.later(365 * day)
	p.age()

	p.sweep()

	off.connect()
	d := off.receive()
	if len(d.Blobs()) != 1 || d.Blobs()[0] != sum {
		t.Fatalf("the node is given %v", d.Blobs())
	}
	content, err := p.OpenBlob(context.Background(), "off-1", sum)
	if err != nil {
		t.Fatalf("the node that was off asks for its content and gets %v", err)
	}
	if err := content.Close(); err != nil {
		t.Error(err)
	}
	// What eight generations of a node and three revisions name is there, the rest
	// is gone.
	for i, sum := range sums {
		if want := i >= 12-8; p.has(sum) != want {
			t.Errorf("the content of version %d is there: %v, want %v", i, p.has(sum), want)
		}
	}
}

func TestAnUploadThatNoDeclarationNamesGoesAndOneThatIsAboutToBeNamedStays(t *testing.T) {
	p := newPlane(t)
	ctx := context.Background()
	upload := func(content string) string {
		r, sum := large("/x", content)
		if err := p.PutBlob(ctx, root, sum, bytes.NewReader(r.File.Content)); err != nil {
			t.Fatal(err)
		}
		return sum
	}
	orphan, again := upload("orphan"), upload("again")
	p.age()
	// Somebody begins to write a declaration with content that was uploaded long
	// ago, and finds that it is there.
	missing, err := p.MissingBlobs(ctx, []string{again})
	if err != nil || len(missing) != 0 {
		t.Fatalf("missing: %v, %v", missing, err)
	}
	fresh := upload("fresh")

	swept := p.sweep()

	if swept.Blobs.Count != 1 || p.has(orphan) || !p.has(again) || !p.has(fresh) {
		t.Errorf("swept %+v; orphan %v, asked about %v, fresh %v", swept, p.has(orphan), p.has(again), p.has(fresh))
	}
	r := mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/x", File: &mesh.FileSpec{SHA256: again, Size: mesh.InlineLimit + 5}}}
	if _, err := p.Declare(ctx, root, doc("web", "", r)); err != nil {
		t.Errorf("what was said to be there cannot be declared: %v", err)
	}
}

func TestNothingOfTheContentGoesWhileABackupIsMade(t *testing.T) {
	p := newPlane(t)
	r, sum := large("/x", "orphan")
	if err := p.PutBlob(context.Background(), root, sum, bytes.NewReader(r.File.Content)); err != nil {
		t.Fatal(err)
	}
	p.age()
	lock, err := store.LockContent(filepath.Join(p.dir, "blobs"), true)
	if err != nil {
		t.Fatal(err)
	}

	_, err = p.Sweep(context.Background())

	if !errors.Is(err, control.ErrBusy) || !p.has(sum) {
		t.Errorf("while a backup is made a sweep gave %v, and the content is there: %v", err, p.has(sum))
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if p.sweep(); p.has(sum) {
		t.Error("after the backup the content stays")
	}
}

// Shows: M31
func TestARevokedKeyIsRefusedForEverAlsoWhenItsNodeIsForgotten(t *testing.T) {
	p := newPlane(t)
	p.keep = short
	p.restart()
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/motd", "hello")))
	h.apply()
	if err := p.Revoke(context.Background(), root, "web-1"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after     time.Duration
		forgotten bool
	}{{59 * day, false}, {2 * day, true}} {
		p.later(step.after)
		swept := p.sweep()
		for range 2 { // also after a restart
			d := h.detail()
			if gone := len(d.Results) == 0 && len(d.Owned) == 0 && d.Declared == 0; gone != step.forgotten || (swept.Nodes == 1) != step.forgotten {
				t.Errorf("after another %v: swept %+v, and of the node is known %+v", step.after, swept, d)
			}
			if d.State != mesh.NodeRevoked {
				t.Errorf("the node is %s", d.State)
			}
			_, err := p.NodeByKey(context.Background(), h.key)
			wantCode(t, "the revoked key", err, mesh.CodeDenied, "web-1", "revoked")
			_, err = h.enrol(control.TokenRequest{Replaces: "web-1"})
			wantCode(t, "an enrolment with the revoked key", err, mesh.CodeConflict, "was revoked")
			p.restart()
		}
	}
	// Another machine takes the place, with generations above all that were given.
	next := machine(p, "web-2")
	if _, err := next.enrol(control.TokenRequest{Replaces: "web-1"}); err != nil {
		t.Fatal(err)
	}
	next.connect()
	if d := next.pending(); d == nil || d.Generation <= h.held {
		t.Errorf("the machine that takes the place is given %v after %s", d, h.held)
	}
}

func TestTheAuditLogAndUsedTokensGoWithTimeAndNotBefore(t *testing.T) {
	p := newPlane(t)
	p.keep = short
	p.restart()
	h := machine(p, "web-1")
	hash := p.token(control.TokenRequest{})
	if _, err := h.enrolWith(hash); err != nil {
		t.Fatal(err)
	}
	entries := func() int {
		t.Helper()
		list, err := p.Audit(context.Background(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	p.later(29 * day)
	p.sweep()
	if entries() != 2 {
		t.Errorf("after 29 of 30 days %d entries are left of 2", entries())
	}
	if _, err := h.enrolWith(hash); err != nil {
		t.Errorf("the machine that lost the answer to its enrolment asks again and gets %v", err)
	}
	p.later(2 * day)
	swept := p.sweep()
	if swept.Audit != 2 || swept.Tokens != 1 || entries() != 0 {
		t.Errorf("after 31 days a sweep removed %+v and left %d entries", swept, entries())
	}
	_, err := machine(p, "web-2").enrolWith(hash)
	wantCode(t, "a token that is forgotten", err, mesh.CodeDenied, "30 days")
}

func TestARevisionThatIsForgottenIsSaidToBeAndTheOldestThatIsKeptIsNamed(t *testing.T) {
	p := newPlane(t)
	p.keep = short
	p.restart()
	for i := range 6 {
		p.declare(doc("web", "", file("/etc/motd", fmt.Sprint(i))))
	}
	if swept := p.sweep(); swept.Revisions != 3 {
		t.Errorf("a sweep removed %+v", swept)
	}
	ctx := context.Background()
	_, err := p.Declaration(ctx, "web", 2)
	wantCode(t, "a forgotten revision", err, mesh.CodeNotFound, "revision 2", "4", "6")
	_, err = p.Revert(ctx, root, "web", 1)
	wantCode(t, "a revert to a forgotten revision", err, mesh.CodeNotFound, "4")
	_, err = p.Declaration(ctx, "web", 7)
	wantCode(t, "a revision that never was", err, mesh.CodeNotFound, "the newest is 6")
	if _, err := p.Revert(ctx, root, "web", 4); err != nil {
		t.Errorf("a revert to a revision that is kept gave %v", err)
	}
}

// steady counts how many rows each transaction of a sweep may remove.
type steady struct {
	control.Store
	steps *[]int
}

func (s steady) ForgetAudit(ctx context.Context, before time.Time, limit int) (int, error) {
	// Another write comes in between and is not kept waiting by the whole sweep.
	if err := s.Store.RecordAudit(ctx, control.AuditEntry{At: before, What: "in between"}); err != nil {
		return 0, err
	}
	n, err := s.Store.ForgetAudit(ctx, before, limit)
	*s.steps = append(*s.steps, n)
	return n, err
}

func TestASweepRemovesInPartsBetweenWhichOthersWrite(t *testing.T) {
	p := newPlane(t)
	p.keep = control.Keep{Audit: day}
	var steps []int
	p.wrap = func(s control.Store) control.Store { return steady{s, &steps} }
	p.restart()
	const entries = 1700
	for range entries {
		if err := p.store.RecordAudit(context.Background(), control.AuditEntry{At: p.clock().Add(-2 * day)}); err != nil {
			t.Fatal(err)
		}
	}
	if swept := p.sweep(); swept.Audit != entries {
		t.Errorf("a sweep removed %+v", swept)
	}
	if len(steps) < 4 || slices.Max(steps) > 500 {
		t.Errorf("it removed %v", steps)
	}
}

func TestASweepThatIsToldToEndEndsAndTheNextGoesOn(t *testing.T) {
	p := newPlane(t)
	p.keep = control.Keep{Audit: day}
	ctx, cancel := context.WithCancel(context.Background())
	p.wrap = func(s control.Store) control.Store { return ending{s, cancel} }
	p.restart()
	for range 600 {
		if err := p.store.RecordAudit(context.Background(), control.AuditEntry{At: p.clock().Add(-2 * day)}); err != nil {
			t.Fatal(err)
		}
	}
	swept, err := p.Sweep(ctx)
	if !errors.Is(err, context.Canceled) || swept.Audit != 500 {
		t.Errorf("told to end after its first part it removed %+v and gave %v", swept, err)
	}
	if swept := p.sweep(); swept.Audit != 100 {
		t.Errorf("the next one removed %+v", swept)
	}
}

type ending struct {
	control.Store
	end func()
}

func (s ending) ForgetAudit(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.Store.ForgetAudit(ctx, before, limit)
	s.end()
	return n, err
}

// sweptStore counts sweeps.
type sweptStore struct {
	countingStore
	crowded chan struct{}
	sweeps  int
}

func (s *sweptStore) Crowded() <-chan struct{} { return s.crowded }
func (s *sweptStore) ForgetTokens(context.Context, time.Time, int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeps++
	return 0, nil
}
func (s *sweptStore) ForgetSequences(context.Context, int) (int, error) { return 0, nil }
func (s *sweptStore) ForgetNames(context.Context, int) (int, error)     { return 0, nil }

func (s *sweptStore) counted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweeps
}

func TestAControlPlaneThatRunsSweepsEveryHourAndWhenItsStoreIsCrowded(t *testing.T) {
	p := newPlane(t)
	synctest.Test(t, func(t *testing.T) {
		s := &sweptStore{crowded: make(chan struct{}, 1)}
		c, err := control.New(t.Context(), control.Config{Store: s, Blobs: p.blobs})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		var seen []int
		look := func() {
			synctest.Wait()
			seen = append(seen, s.counted())
		}
		time.Sleep(59 * time.Minute)
		look()
		time.Sleep(2 * time.Minute)
		look()
		s.crowded <- struct{}{}
		look()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the end gave %v", err)
		}
		if !slices.Equal(seen, []int{0, 1, 2}) {
			t.Errorf("sweeps after 59 minutes, an hour, and when it was asked for: %v", seen)
		}
	})
}
