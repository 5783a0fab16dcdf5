package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
)

// What is written of the SPDX 2.3 model (https://spdx.github.io/spdx-spec/v2.3/).
type (
	spdxDocument struct {
		Version           string             `json:"spdxVersion"`
		License           string             `json:"dataLicense"`
		ID                string             `json:"SPDXID"`
		Name              string             `json:"name"`
		Namespace         string             `json:"documentNamespace"`
		Creation          spdxCreation       `json:"creationInfo"`
		Packages          []spdxPackage      `json:"packages"`
		Relationships     []spdxRelationship `json:"relationships"`
		DocumentDescribes []string           `json:"documentDescribes"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID               string          `json:"SPDXID"`
		Name             string          `json:"name"`
		Version          string          `json:"versionInfo"`
		Location         string          `json:"downloadLocation"`
		FilesAnalyzed    bool            `json:"filesAnalyzed"`
		LicenseConcluded string          `json:"licenseConcluded"`
		LicenseDeclared  string          `json:"licenseDeclared"`
		Copyright        string          `json:"copyrightText"`
		Checksums        []spdxChecksum  `json:"checksums,omitempty"`
		References       []spdxReference `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const unsaid = "NOASSERTION"

// describe lists the modules that a binary was made of, as the binary itself tells: SPDX 2.3 in JSON.
func describe(binary []byte, r request) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read what the binary is made of: %w", err)
	}
	sum := sha256.Sum256(binary)
	digest := hex.EncodeToString(sum[:])
	main := spdxPackage{
		ID: "SPDXRef-postrider", Name: "postrider", Version: r.version, Location: "https://github.com/postrider/postrider",
		LicenseConcluded: unsaid, LicenseDeclared: "Apache-2.0", Copyright: unsaid,
		Checksums:  []spdxChecksum{{"SHA256", digest}},
		References: []spdxReference{purl(info.Main.Path, r.version)},
	}
	document := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "postrider-" + r.version,
		Namespace:         "https://github.com/postrider/postrider/sbom/" + digest,
		Creation:          spdxCreation{Created: r.created.Format("2006-01-02T15:04:05Z"), Creators: []string{"Organization: The Postrider authors", "Tool: make image"}},
		Packages:          []spdxPackage{main},
		Relationships:     []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", main.ID}},
		DocumentDescribes: []string{main.ID},
	}
	add := func(p spdxPackage) {
		document.Packages = append(document.Packages, p)
		document.Relationships = append(document.Relationships, spdxRelationship{main.ID, "DEPENDS_ON", p.ID})
	}
	version := strings.TrimPrefix(info.GoVersion, "go")
	add(spdxPackage{
		ID: "SPDXRef-go", Name: "stdlib", Version: version, Location: "https://go.dev/dl/", LicenseConcluded: unsaid, LicenseDeclared: "BSD-3-Clause",
		Copyright: unsaid, References: []spdxReference{purl("stdlib", version)},
	})
	for _, dependency := range info.Deps {
		if dependency.Replace != nil {
			dependency = dependency.Replace
		}
		add(spdxPackage{
			ID: identifier(dependency.Path + "-" + dependency.Version), Name: dependency.Path, Version: dependency.Version,
			Location:         "https://proxy.golang.org/" + escape(dependency.Path) + "/@v/" + escape(dependency.Version) + ".zip",
			LicenseConcluded: unsaid, LicenseDeclared: unsaid, Copyright: unsaid,
			// go.sum's hash is one over a list of files, for which SPDX has no name: none is better than one that is not it.
			References: []spdxReference{purl(dependency.Path, dependency.Version)},
		})
	}
	text, err := json.MarshalIndent(document, "", " ")
	return append(text, '\n'), err
}

func purl(path, version string) spdxReference {
	return spdxReference{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + url.PathEscape(version)}
}

// identifier makes an SPDX id: letters, digits, dots and dashes.
func identifier(text string) string {
	return "SPDXRef-" + strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' {
			return c
		}
		return '-'
	}, text)
}

// escape writes a path or version as the module proxy wants it: capitals as an exclamation mark and the small letter.
func escape(text string) string {
	var b strings.Builder
	for _, c := range text {
		if c >= 'A' && c <= 'Z' {
			b.WriteByte('!')
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}
