// Upstream's end-to-end tests of [sig-network], and ginkgo, which runs them in parallel processes:
// one program, whose name decides which of them it is. The tests of other groups are not part of it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/onsi/ginkgo/v2/ginkgo/command"
	"github.com/onsi/ginkgo/v2/ginkgo/run"
	"github.com/onsi/ginkgo/v2/types"
	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	_ "k8s.io/kubernetes/test/e2e/common/network"
	_ "k8s.io/kubernetes/test/e2e/feature"
	_ "k8s.io/kubernetes/test/e2e/network"

	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/utils/format"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "ginkgo":
		runner()
	case "e2e.test":
		suite()
	default:
		fmt.Fprintf(os.Stderr, "%s: this program has to be called ginkgo or e2e.test\n", name)
		os.Exit(2)
	}
}

// runner is ginkgo's command line with its one command that runs a suite.
func runner() {
	program := command.Program{
		Name:           "ginkgo",
		Heading:        "Ginkgo Version " + types.VERSION,
		DefaultCommand: run.BuildRunCommand(),
	}
	program.RunAndExit(os.Args)
}

// suite does what upstream's TestMain does.
func suite() {
	testing.Init()
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	all := func(_, _ string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "TestE2E", F: e2e.RunE2ETests}}, nil, nil)
}
