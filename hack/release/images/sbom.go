package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

const sbomMediaType = "application/spdx+json"

// The fields of SPDX 2.3 that an SBOM of Go programs needs.
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		DataLicense   string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Files         []spdxFile         `json:"files"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Version       string             `json:"versionInfo,omitempty"`
		Location      string             `json:"downloadLocation"`
		FilesAnalyzed bool               `json:"filesAnalyzed"`
		Purpose       string             `json:"primaryPackagePurpose,omitempty"`
		References    []spdxExternalRefs `json:"externalRefs,omitempty"`
	}
	spdxExternalRefs struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxFile struct {
		ID        string         `json:"SPDXID"`
		Name      string         `json:"fileName"`
		Checksums []spdxChecksum `json:"checksums"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRelationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const (
	spdxSelf  = "SPDXRef-DOCUMENT"
	spdxImage = "SPDXRef-Image"
	// A constant timestamp keeps builds reproducible.
	spdxCreated = "1970-01-01T00:00:00Z"
)

// sbom returns an SPDX document that lists the modules of the programs.
func sbom(name string, programs map[string]string) ([]byte, error) {
	document := spdxDocument{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: spdxSelf, Name: name,
		Creation:      spdxCreation{Created: spdxCreated, Creators: []string{"Tool: parley-images"}},
		Packages:      []spdxPackage{{ID: spdxImage, Name: name, Location: "NOASSERTION", Purpose: "CONTAINER"}},
		Relationships: []spdxRelationship{{spdxSelf, "DESCRIBES", spdxImage}},
	}
	modules := map[string]spdxPackage{}
	for _, target := range slices.Sorted(maps.Keys(programs)) {
		if err := document.addProgram(target, programs[target], modules); err != nil {
			return nil, fmt.Errorf("%s: %w", target, err)
		}
	}
	document.Packages = append(document.Packages, slices.SortedFunc(maps.Values(modules), func(a, b spdxPackage) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
	})...)
	content, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	// SPDX requires a unique namespace per document. A hash of the content is unique and reproducible.
	sum := sha256.Sum256(content)
	document.Namespace = "https://parley.dev/spdx/" + name + "/" + hex.EncodeToString(sum[:])
	return json.MarshalIndent(document, "", " ")
}

func (d *spdxDocument) addProgram(target, source string, modules map[string]spdxPackage) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(source)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	file := spdxFile{
		ID: spdxID("File", target), Name: "./" + target,
		Checksums: []spdxChecksum{{"SHA256", hex.EncodeToString(sum[:])}},
	}
	d.Files = append(d.Files, file)
	d.Relationships = append(d.Relationships, spdxRelationship{spdxImage, "CONTAINS", file.ID})
	used := []spdxPackage{
		modulePackage(&info.Main),
		modulePackage(&debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}),
	}
	for _, module := range info.Deps {
		used = append(used, modulePackage(module))
	}
	for _, module := range used {
		modules[module.ID] = module
		d.Relationships = append(d.Relationships, spdxRelationship{file.ID, "GENERATED_FROM", module.ID})
	}
	return nil
}

func modulePackage(module *debug.Module) spdxPackage {
	if module.Replace != nil {
		module = module.Replace
	}
	locator := "pkg:golang/" + module.Path
	version := module.Version
	if version == "(devel)" {
		version = "" // the main module has no version
	}
	if version != "" {
		locator += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return spdxPackage{
		ID: spdxID("Module", module.Path+"-"+version), Name: module.Path, Version: version, Location: "NOASSERTION",
		References: []spdxExternalRefs{{"PACKAGE-MANAGER", "purl", locator}},
	}
}

var notInID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

func spdxID(kind, name string) string {
	return "SPDXRef-" + kind + "-" + strings.Trim(notInID.ReplaceAllString(name, "-"), "-")
}
