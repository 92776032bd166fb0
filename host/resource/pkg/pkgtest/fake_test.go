package pkgtest_test

import (
	"maps"
	"testing"

	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/resource/pkg/pkgtest"
)

type fakeSystem struct{ fake *pkgtest.Fake }

func (s fakeSystem) Manager(*testing.T) pkg.Manager { return s.fake }
func (s fakeSystem) One() string                    { return "1-1" }
func (s fakeSystem) Two() string                    { return "2-1" }
func (s fakeSystem) Publish(*testing.T) {
	s.fake.Repository = maps.Clone(s.fake.Repository)
	s.fake.Repository["late"] = []pkgtest.Offer{{Version: "1-1"}}
}
func (s fakeSystem) CutOff(*testing.T) { s.fake.Unreachable = true }
func (s fakeSystem) Lock(*testing.T)   { s.fake.Locked = true }
func (s fakeSystem) Ruin(*testing.T)   { s.fake.Unreadable = true }

func TestTheFakeKeepsTheContractOfAManager(t *testing.T) {
	pkgtest.Run(t, func(*testing.T) pkgtest.System {
		return fakeSystem{pkgtest.NewFake(map[string][]pkgtest.Offer{
			"fx":    {{Version: "1-1"}, {Version: "2-1"}},
			"needs": {{Version: "1-1", Depends: []string{"fx"}}},
			"never": {{Version: "1-1", Depends: []string{"nowhere"}}},
		})}
	})
}
