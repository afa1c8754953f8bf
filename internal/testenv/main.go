package testenv

import (
	"flag"
	"os"
	"strconv"
	"testing"
)

// atOnce is how many tests run at the same time in a package whose tests mostly wait.
const atOnce = 8

// Main is the TestMain of a package whose tests mostly wait for servers: eight of the tests that call
// t.Parallel run at the same time, however few processors there are. `go test -parallel N` overrides that.
func Main(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		if err := flag.Set("test.parallel", strconv.Itoa(atOnce)); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
