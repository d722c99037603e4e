package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
	"github.com/parley-dev/parley/hack/release/manifests"
)

// tenantOptions are the input of the tenant's process.
type tenantOptions struct {
	Kubeconfig, AdminKubeconfig string   // files
	Facades                     []string // addresses
	SessionProgram, Dir         string
	Attacks                     string // a regular expression
}

// tenantResult is the output of the tenant's process.
type tenantResult struct {
	Outcomes      map[string]*attackOutcomes // keyed by the name of the attack
	Problems      map[string][]string        // keyed by the name of the check
	ModelRequests int
}

// runTenant is the tenant's process. It prints a line when it is ready. The command attackCommand
// in its input begins the attacks. The command restCommand ends them, and the process then prints a
// line. When its input ends, the process prints its result.
func runTenant(ctx context.Context, options string, in io.Reader, out io.Writer) error {
	var o tenantOptions
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	selected, err := regexp.Compile(o.Attacks)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	adminConf, admin, err := cluster.Open(o.AdminKubeconfig)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	stopNode, err := startNode(ctx, adminConf, node.Options{Name: tenantName, Say: say,
		Program: o.SessionProgram, State: filepath.Join(o.Dir, "node"), Logs: filepath.Join(o.Dir, "sessions"),
		Runs: func(namespace string) bool { return namespace == tenantName }})
	if err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	defer stopNode()
	script := newTenantScript()
	model := httptest.NewServer(script)
	defer model.Close()
	// The tenant reaches the facades through its own load balancer. The load balancer of the users
	// runs in the process that measures the users. The tenant's requests must not occupy that process.
	facades, err := serve("127.0.0.1:0", o.Facades...)
	if err != nil {
		return err
	}
	defer facades.stop()
	r := newReport()
	t, err := newTenant(ctx, admin, o, "http://"+facades.listener.Addr().String(), model.URL, r)
	if err != nil {
		return fmt.Errorf("create the tenant: %w", err)
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	stop := func() {}
	for commands := bufio.NewScanner(in); commands.Scan(); {
		if commands.Text() == attackCommand {
			stop = t.begin(ctx, selected)
			continue
		}
		stop()
		if _, err := fmt.Fprintln(out, "the attacks have ended"); err != nil {
			return err
		}
	}
	requests := script.Requests()
	for _, request := range requests {
		if secretValues(nil).findKey(request.Raw) >= 0 {
			r.violation(checkModel, "a request to the model contains a secret of a user")
		}
	}
	return json.NewEncoder(out).Encode(tenantResult{Outcomes: t.outcomes, Problems: r.problems,
		ModelRequests: len(requests)})
}

// tenantProcess is the running process of the tenant.
type tenantProcess struct {
	cmd    *exec.Cmd
	dir    string
	input  io.WriteCloser
	output *bufio.Reader
	group  cpuGroup
}

// startTenant creates the tenant's account, starts its process and waits until it is ready.
func (i *installation) startTenant(ctx context.Context) (*tenantProcess, error) {
	if err := i.createTenantAccount(ctx); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(i.dir, tenantName)
	options, err := json.Marshal(tenantOptions{Kubeconfig: i.parley.Kubeconfig(tenantName),
		AdminKubeconfig: i.adminKubeconfig(), Facades: i.replicaAddresses(facadePort),
		SessionProgram: i.sessionProgram(), Dir: dir, Attacks: i.attacks})
	if err != nil {
		return nil, err
	}
	t := &tenantProcess{dir: dir, cmd: exec.CommandContext(ctx, "chrt", "--idle", "0", self, "-tenant="+string(options))}
	t.cmd.Stderr = os.Stderr
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if t.input, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.output = bufio.NewReader(output)
	if err := cluster.StartOnLastingThread(t.cmd); err != nil {
		return nil, err
	}
	if t.group, err = newIdleGroup(t.cmd.Process.Pid); err != nil {
		t.kill()
		return nil, err
	}
	if _, err := t.output.ReadString('\n'); err != nil {
		t.kill()
		return nil, errors.New("the tenant's process ended early")
	}
	return t, nil
}

// createTenantAccount creates the tenant's namespace and rights, and its two classes.
func (i *installation) createTenantAccount(ctx context.Context) error {
	hour := &v1alpha1.Lifetime{Max: &metav1.Duration{Duration: time.Hour}}
	account := metav1.ObjectMeta{Namespace: tenantName, Name: tenantName}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantName}},
		&corev1.ServiceAccount{ObjectMeta: account},
		&rbacv1.RoleBinding{ObjectMeta: account,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: tenantName, Name: tenantName}}},
		&v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: forbiddenClass}},
		&v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: limitedClass}, Spec: v1alpha1.SessionClassSpec{
			Lifetimes: &v1alpha1.SessionLifetimes{MaxDuration: hour, IdleTimeout: hour}}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: limitedClass}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{v1alpha1.SchemeGroupVersion.Group}, Resources: []string{"sessionclasses"},
			ResourceNames: []string{limitedClass}, Verbs: []string{"use"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: limitedClass},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: limitedClass},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: tenantName, Name: tenantName}}},
	} {
		if err := i.admin.Create(ctx, object); err != nil {
			return err
		}
	}
	return i.parley.Identify(ctx, tenantName, manifests.Workload{Namespace: tenantName, ServiceAccount: tenantName})
}

// These are the commands that the tenant's process reads.
const attackCommand, restCommand = "attack", "rest"

func (t *tenantProcess) attack() error {
	_, err := fmt.Fprintln(t.input, attackCommand)
	return err
}

// rest ends the attacks.
func (t *tenantProcess) rest() error {
	if _, err := fmt.Fprintln(t.input, restCommand); err != nil {
		return err
	}
	_, err := t.output.ReadString('\n')
	return err
}

// end stops the process and returns its result. The caller must first end the attacks.
func (t *tenantProcess) end() (*tenantResult, error) {
	if err := t.input.Close(); err != nil {
		return nil, err
	}
	result := &tenantResult{}
	if err := json.NewDecoder(t.output).Decode(result); err != nil {
		return nil, err
	}
	err := t.cmd.Wait()
	t.group.remove()
	return result, errors.Join(err, os.RemoveAll(t.dir))
}

// kill ends the tenant's process, if it still runs. The tenant's sessions end together with this
// process.
func (t *tenantProcess) kill() {
	if t.cmd.ProcessState == nil {
		_ = t.cmd.Process.Kill()
		_ = t.cmd.Wait()
		t.group.remove()
		_ = os.RemoveAll(t.dir)
	}
}

// print prints the number of calls of each attack, and reports the problems that the tenant found.
func (t *tenantResult) print(out io.Writer, r *report) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	_, _ = fmt.Fprintln(w, "\nattack\taccepted\trefused\tfailed\tlongest\tlast refusal or failure")
	for _, a := range attacks {
		if o := t.Outcomes[a.name]; o != nil {
			_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%.70q\n", a.name, o.Accepted, o.Refused, o.Failed,
				o.Longest.Round(time.Millisecond), o.LastRefusal)
		}
	}
	for check, problems := range t.Problems {
		for _, problem := range problems {
			r.violation(check, "%s", problem)
		}
	}
	r.note(checkModel, "%d requests", t.ModelRequests)
}

// checkClasses reports sessions of the tenant in a class that the tenant may not use.
func (i *installation) checkClasses(ctx context.Context, r *report) error {
	var pods corev1.PodList
	if err := i.admin.List(ctx, &pods, client.InNamespace(tenantName)); err != nil {
		return err
	}
	for n := range pods.Items {
		if pods.Items[n].Labels[v1alpha1.LabelSessionClass] == forbiddenClass {
			r.violation(checkClass, "pod %s has the class %s", pods.Items[n].Name, forbiddenClass)
		}
	}
	r.note(checkClass, "%d pods of the tenant", len(pods.Items))
	return nil
}
