package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	nodeName = "e2e"
	// nodeAddress is the node's address. makeNetwork adds it to the loopback interface of the
	// test's network namespace. An address in 127.0.0.0/8 is not possible, because the API server
	// and the kubelet refuse it.
	nodeAddress  = "10.99.0.1"
	serviceRange = "10.96.0.0/16"
	podRange     = "10.244.0.0/24"
)

func makeNetwork(ctx context.Context) error {
	for _, command := range []string{
		"ip link set lo up",
		"ip address add " + nodeAddress + "/32 dev lo",
		"ip route add " + serviceRange + " dev lo", // necessary, because there is no default route
	} {
		words := strings.Fields(command)
		if output, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, output)
		}
	}
	for name, value := range map[string]string{"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"} {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// cniConfig connects pods with a bridge. The pods have no route to networks outside the node.
const cniConfig = `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
      "ipam": {"type": "host-local", "dataDir": "/run/cni-addresses", "ranges": [[{"subnet": "` + podRange + `"}]]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`
