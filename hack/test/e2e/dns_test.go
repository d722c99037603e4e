package e2e

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cacheTime is how long the DNS server keeps the address of a Service, as in CoreDNS. Without this
// cache, a lookup would wait for the API server.
const cacheTime = 30 * time.Second

// serveNames is the cluster's DNS server. It resolves only names of Services.
func (n *inside) serveNames(ctx context.Context) error {
	socket, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", net.JoinHostPort(nodeAddress, "53"))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	resolver := names{client: n.client, known: map[string]cachedAddress{}}
	go func() {
		buffer := make([]byte, 1500)
		for {
			size, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer, err := resolver.answer(ctx, buffer[:size]); err == nil {
				_, _ = socket.WriteTo(answer, from) // clients retry
			}
		}
	}()
	return nil
}

// names resolves the names of Services. Only one goroutine uses it.
type names struct {
	client client.Client
	known  map[string]cachedAddress // keyed by the queried name
}

type cachedAddress struct {
	netip.Addr
	until time.Time
}

func (n names) answer(ctx context.Context, packet []byte) ([]byte, error) {
	var asked dnsmessage.Message
	if err := asked.Unpack(packet); err != nil {
		return nil, err
	}
	answer := dnsmessage.Message{Header: dnsmessage.Header{ID: asked.ID, Response: true, Authoritative: true,
		RecursionDesired: asked.RecursionDesired}, Questions: asked.Questions}
	for _, question := range asked.Questions {
		address, found := n.addressOf(ctx, question.Name.String())
		if !found {
			answer.RCode = dnsmessage.RCodeNameError
			continue
		}
		if question.Type == dnsmessage.TypeA {
			answer.Answers = append(answer.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 5},
				Body:   &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	return answer.Pack()
}

// addressOf resolves names of the form NAME.NAMESPACE.svc or NAME.NAMESPACE.svc.cluster.local.
func (n names) addressOf(ctx context.Context, name string) (netip.Addr, bool) {
	if found := n.known[name]; time.Now().Before(found.until) {
		return found.Addr, true
	}
	parts := strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, "."), ".cluster.local"), ".")
	if len(parts) != 3 || parts[2] != "svc" {
		return netip.Addr{}, false
	}
	service := &corev1.Service{}
	if err := n.client.Get(ctx, client.ObjectKey{Namespace: parts[1], Name: parts[0]}, service); err != nil {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil || !address.Is4() {
		return netip.Addr{}, false
	}
	n.known[name] = cachedAddress{address, time.Now().Add(cacheTime)}
	return address, true
}
