package main

import (
	"strings"
	"testing"
)

const (
	before = `package p
func TestKept(t *testing.T) {}
func TestMoved(t *testing.T) {}
func TestLost(t *testing.T) {}
func TestGone(t *testing.T) {}
func TestSoakByName(t *testing.T) {}
func TestOfTestenv(t *testing.T) {}
`
	after = `package p
func TestKept(t *testing.T) { t.Run("part", func(t *testing.T) { testenv.Long(t, "a slow part") }) }
func TestMoved(t *testing.T) { testenv.Long(t, "a race") }
func TestLost(t *testing.T) { testenv.Soak(t, "a leak") }
func TestSoakByName(t *testing.T) { testenv.Soak(t, "a cost") }
func TestOfTestenv(t *testing.T) { Long(t, "a server that tests get") }
`
)

func TestCompare(t *testing.T) {
	then, now := tests{}, tests{}
	for all, source := range map[*tests]string{&then: before, &now: after} {
		if err := all.add("p/p_test.go", []byte(source)); err != nil {
			t.Fatal(err)
		}
	}
	said, err := compare(then, now)
	if err == nil || !strings.HasPrefix(err.Error(), "1 tests left") {
		t.Errorf("one test is lost, and it says %v", err)
	}
	const want = `gone    p TestGone, was in tier 1
parted  p TestKept in part from tier 1 to 2  only it finds a slow part
LOST    p TestLost to make soak alone
moved   p TestMoved from tier 1 to 2  only it finds a race
moved   p TestOfTestenv from tier 1 to 2  only it finds a server that tests get

6 tests then, 5 now: 0 added, 1 gone, 2 moved, 1 lost
`
	if said != want {
		t.Errorf("got:\n%s\nwant:\n%s", said, want)
	}
}
