// The programs of pods: agnhost, with which upstream's tests serve and connect, and CoreDNS with
// the plugins of a cluster's DNS. The program's name decides which of them it is.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/test/images/agnhost/connect"
	"k8s.io/kubernetes/test/images/agnhost/dns"
	entrypoint "k8s.io/kubernetes/test/images/agnhost/entrypoint-tester"
	"k8s.io/kubernetes/test/images/agnhost/liveness"
	"k8s.io/kubernetes/test/images/agnhost/net"
	"k8s.io/kubernetes/test/images/agnhost/netexec"
	"k8s.io/kubernetes/test/images/agnhost/nettest"
	nosnat "k8s.io/kubernetes/test/images/agnhost/no-snat-test"
	nosnatproxy "k8s.io/kubernetes/test/images/agnhost/no-snat-test-proxy"
	"k8s.io/kubernetes/test/images/agnhost/pause"
	portforwardtester "k8s.io/kubernetes/test/images/agnhost/port-forward-tester"
	"k8s.io/kubernetes/test/images/agnhost/porter"
	servehostname "k8s.io/kubernetes/test/images/agnhost/serve-hostname"
	tcpreset "k8s.io/kubernetes/test/images/agnhost/tcp-reset"
	testwebserver "k8s.io/kubernetes/test/images/agnhost/test-webserver"
)

// The plugins, in the order in which CoreDNS asks them.
var plugins = []string{"reload", "log", "errors", "health", "ready", "cache", "hosts", "kubernetes", "file", "forward"}

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "coredns":
		dnsserver.Directives = plugins
		coremain.Run()
	case "agnhost", "agnhost-2":
		os.Exit(cli.Run(agnhost()))
	default:
		fmt.Fprintf(os.Stderr, "%s: this program has to be called agnhost or coredns\n", name)
		os.Exit(2)
	}
}

// agnhost has the subcommands that tests of networks use.
func agnhost() *cobra.Command {
	root := &cobra.Command{Use: "app", Version: "lab"}
	root.AddCommand(
		connect.CmdConnect,
		dns.CmdDNSSuffix,
		dns.CmdDNSServerList,
		dns.CmdEtcHosts,
		entrypoint.CmdEntrypointTester,
		liveness.CmdLiveness,
		net.CmdNet,
		netexec.CmdNetexec,
		nettest.CmdNettest,
		nosnat.CmdNoSnatTest,
		nosnatproxy.CmdNoSnatTestProxy,
		pause.CmdPause,
		porter.CmdPorter,
		portforwardtester.CmdPortForwardTester,
		servehostname.CmdServeHostname,
		tcpreset.CmdTCPReset,
		testwebserver.CmdTestWebserver,
	)
	return root
}
