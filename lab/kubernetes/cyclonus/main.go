// Runs cyclonus' generated cases of network policies on a cluster. The cases, the expected results, the comparison and
// the printed tables are cyclonus' own packages. The program's name decides its part: `cyclonus` runs the cases,
// `worker` sends the probes of one pod.
//
// Upstream's command line has three properties that do not fit two cores: one exec for each probe, a client limited to
// five requests per second, and no report. This runner uses cyclonus' batches (one exec for each pod and step), a client
// without that limit, and writes a line of JSON for each case.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	"github.com/mattfenwick/cyclonus/pkg/worker"
	"github.com/sirupsen/logrus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "cyclonus":
		err = runCases()
	case "worker":
		err = sendProbes()
	default:
		err = fmt.Errorf("%s: this program has to be called cyclonus or worker", name)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\n", err)
		os.Exit(1)
	}
}

// The cases' selectors name these.
var (
	namespaces = []string{"x", "y", "z"}
	pods       = []string{"a", "b", "c"}
	ports      = []int{80, 81}
)

// Time limit for the start of the nine pods, in seconds.
const podStart = 180

// Time limit until the pods reach each other: twice the time for which DNS keeps an answer.
const reachable = time.Minute

// caseReport is a line of the report.
type caseReport struct {
	Number int    `json:"number"`
	Total  int    `json:"total"`
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	// Error is the reason why the case could not run.
	Error string       `json:"error"`
	Log   string       `json:"log"`
	Steps []stepReport `json:"steps"`
}

// stepReport has the numbers of probes of a step's last try.
type stepReport struct {
	Tries   int `json:"tries"`
	Wrong   int `json:"wrong"`
	Correct int `json:"correct"`
	// Ignored probes are from a pod to itself.
	Ignored int `json:"ignored"`
}

func runCases() error {
	kubeconfig := flag.String("kubeconfig", "", "the cluster's `file`")
	report := flag.String("report", "", "`file` for a line of JSON for each case")
	logs := flag.String("logs", "", "`folder` for what each case prints")
	focus := flag.String("focus", "", "run only cases whose names match this regular `expression`")
	protocols := flag.String("protocols", "TCP,UDP", "protocols of the probes")
	wait := flag.Int("wait", 1, "`seconds` between a change and its probes")
	flag.Parse()
	// The reason of a failed probe is a message of this level.
	logrus.SetLevel(logrus.DebugLevel)
	wanted, err := regexp.Compile(*focus)
	if err != nil {
		return err
	}
	clients, err := connect(*kubeconfig)
	if err != nil {
		return err
	}
	var servers []v1.Protocol
	for _, protocol := range strings.Split(*protocols, ",") {
		servers = append(servers, v1.Protocol(protocol))
	}
	lines, err := os.Create(*report)
	if err != nil {
		return err
	}
	defer lines.Close()
	resources, err := probe.NewDefaultResources(clients, namespaces, pods, ports, servers, nil, podStart, true, "")
	if err != nil {
		return err
	}
	if err := waitReady(clients); err != nil {
		return err
	}
	if err := kube.DeleteAllNetworkPoliciesInNamespaces(clients, namespaces); err != nil {
		return err
	}
	if err := waitReachable(clients, resources); err != nil {
		return err
	}
	last, err := resources.GetPod("z", "c")
	if err != nil {
		return err
	}
	all := generator.NewTestCaseGenerator(true, last.IP, namespaces, nil, nil).GenerateTestCases()
	var cases []*generator.TestCase
	for _, it := range all {
		if wanted.MatchString(name(it)) {
			cases = append(cases, it)
		}
	}
	interpreter := connectivity.NewInterpreter(clients, resources, &connectivity.InterpreterConfig{
		ResetClusterBeforeTestCase:       true,
		KubeProbeRetries:                 1,
		PerturbationWaitSeconds:          *wait,
		VerifyClusterStateBeforeTestCase: true,
		BatchJobs:                        true,
		IgnoreLoopback:                   true,
	})
	for i, it := range cases {
		line := caseReport{Number: i + 1, Total: len(cases), Name: name(it), Log: fmt.Sprintf("%03d.txt", i+1)}
		if err := runCase(interpreter, it, filepath.Join(*logs, line.Log), &line); err != nil {
			return err
		}
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(lines, "%s\n", text); err != nil {
			return err
		}
	}
	return deleteNamespaces(clients)
}

// name distinguishes cases with the same description by their tags.
func name(it *generator.TestCase) string {
	return fmt.Sprintf("%s [%s]", it.Description, strings.Join(it.Tags.Keys(), " "))
}

func connect(kubeconfig string) (*kube.Kubernetes, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 400
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &kube.Kubernetes{ClientSet: clientset, RestConfig: config}, nil
}

// waitReady waits for every container: cyclonus waits for the first one of each pod.
func waitReady(clients *kube.Kubernetes) error {
	for range podStart {
		waiting := 0
		for _, namespace := range namespaces {
			list, err := clients.ClientSet.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, pod := range list.Items {
				for _, condition := range pod.Status.Conditions {
					if condition.Type == v1.PodReady && condition.Status != v1.ConditionTrue {
						waiting++
					}
				}
			}
		}
		if waiting == 0 {
			return nil
		}
		time.Sleep(time.Second)
	}
	return errors.New("the pods are not ready")
}

// waitReachable waits until every pod reaches every other one without policies. After an earlier run on the cluster its
// DNS answers for a while with the addresses of that run's Services.
func waitReachable(clients *kube.Kubernetes, resources *probe.Resources) error {
	runner := probe.NewKubeBatchRunner(clients, len(resources.Pods), &probe.JobBuilder{})
	var table *probe.Table
	for deadline := time.Now().Add(reachable); time.Now().Before(deadline); {
		table = runner.RunProbeForConfig(generator.NewAllAvailable(generator.ProbeModeServiceName), resources)
		if allReach(table) {
			return nil
		}
	}
	return fmt.Errorf("without policies some probes fail:\n%s", table.RenderTable())
}

func allReach(table *probe.Table) bool {
	for _, key := range table.Wrapped.Keys() {
		for _, result := range table.Get(key.From, key.To).JobResults {
			if key.From != key.To && result.Combined != probe.ConnectivityAllowed {
				return false
			}
		}
	}
	return true
}

// deleteNamespaces waits until they are gone: the next run creates them again.
func deleteNamespaces(clients *kube.Kubernetes) error {
	for _, namespace := range namespaces {
		if err := clients.DeleteNamespace(namespace); err != nil {
			return err
		}
	}
	for _, namespace := range namespaces {
		for range podStart {
			if _, err := clients.GetNamespace(namespace); err != nil {
				break
			}
			time.Sleep(time.Second)
		}
	}
	return nil
}

// runCase runs a case. Its file has what cyclonus prints.
func runCase(interpreter *connectivity.Interpreter, it *generator.TestCase, file string, line *caseReport) error {
	log, err := os.Create(file)
	if err != nil {
		return err
	}
	defer log.Close()
	stdout := os.Stdout
	os.Stdout = log
	defer func() { os.Stdout = stdout }()
	result := interpreter.ExecuteTestCase(it)
	printer := &connectivity.Printer{IgnoreLoopback: true}
	printer.PrintTestCaseResult(result)
	line.Passed = result.Err == nil && result.Passed(true)
	if result.Err != nil {
		line.Error = result.Err.Error()
	}
	for _, step := range result.Steps {
		numbers := stepReport{Tries: len(step.KubeProbes)}
		for _, counts := range step.LastComparison().ValueCountsByProtocol(true) {
			numbers.Wrong += counts[connectivity.DifferentComparison]
			numbers.Correct += counts[connectivity.SameComparison]
			numbers.Ignored += counts[connectivity.IgnoredComparison]
		}
		line.Steps = append(line.Steps, numbers)
	}
	return nil
}

// Time limits of a probe, and of the resolution of its name.
const (
	probeLimit = time.Second
	nameLimit  = 2 * time.Second
)

// sendProbes does what upstream's worker does, without a process for each probe.
func sendProbes() error {
	flags := flag.NewFlagSet("worker", flag.ExitOnError)
	jobs := flags.String("jobs", "", "a batch as `JSON`")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	var batch worker.Batch
	if err := json.Unmarshal([]byte(*jobs), &batch); err != nil {
		return err
	}
	if err := batch.IsValid(); err != nil {
		return err
	}
	results := make([]*worker.Result, len(batch.Requests))
	var running sync.WaitGroup
	for i, request := range batch.Requests {
		running.Add(1)
		go func() {
			defer running.Done()
			results[i] = send(request)
		}()
	}
	running.Wait()
	return json.NewEncoder(os.Stdout).Encode(results)
}

// send repeats a failed probe once, as upstream's worker does.
func send(request *worker.Request) *worker.Result {
	if request.Protocol == v1.ProtocolSCTP {
		// Go has no SCTP: agnhost sends the probe.
		return worker.IssueRequestWithRetries(request, 1)
	}
	err := sendOnce(request)
	if err != nil {
		err = sendOnce(request)
	}
	result := &worker.Result{Request: request}
	if err != nil {
		result.Error = err.Error()
	}
	return result
}

// sendOnce connects to a server of TCP, and expects an answer of a server of UDP.
func sendOnce(request *worker.Request) error {
	address, err := resolve(request.Host)
	if err != nil {
		return err
	}
	network := strings.ToLower(string(request.Protocol))
	target := net.JoinHostPort(address, fmt.Sprint(request.Port))
	connection, err := net.DialTimeout(network, target, probeLimit)
	if err != nil {
		return err
	}
	defer connection.Close()
	if request.Protocol != v1.ProtocolUDP {
		return nil
	}
	if err := connection.SetDeadline(time.Now().Add(probeLimit)); err != nil {
		return err
	}
	if _, err := connection.Write([]byte("hostname\n")); err != nil {
		return err
	}
	read, err := connection.Read(make([]byte, 1024))
	if err == nil && read == 0 {
		err = errors.New("an empty answer")
	}
	return err
}

// resolve returns the address of a name. The cases use complete names, which need no search list.
func resolve(host string) (string, error) {
	if net.ParseIP(host) != nil {
		return host, nil
	}
	limited, cancel := context.WithTimeout(context.Background(), nameLimit)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(limited, host+".")
	if err != nil {
		return "", err
	}
	return addresses[0], nil
}
