// Command sbom writes what a Go binary was built from as CycloneDX, from the information that the linker put
// into the binary. For the same binary it always writes the same bytes.
//
//	sbom BINARY VERSION COMMIT DATE >sbom.cdx.json
package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"runtime/debug"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: sbom BINARY VERSION COMMIT DATE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(binary, version, commit, date string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	// The linker knows no version of a main module that was built in a workspace.
	root := component(cdx.ComponentTypeApplication, debug.Module{Path: info.Main.Path, Version: version})
	root.Properties = &[]cdx.Property{{Name: "vcs.revision", Value: commit}, {Name: "vcs.time", Value: date}}
	libraries := []cdx.Component{component(cdx.ComponentTypeLibrary, debug.Module{Path: "stdlib", Version: info.GoVersion})}
	for _, dep := range info.Deps {
		if dep.Replace == nil && dep.Version != "(devel)" { // otherwise the module belongs to this repository
			libraries = append(libraries, component(cdx.ComponentTypeLibrary, *dep))
		}
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &root}
	bom.Components = &libraries
	return cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// component names a module by its package URL (https://github.com/package-url/purl-spec).
func component(kind cdx.ComponentType, m debug.Module) cdx.Component {
	purl := fmt.Sprintf("pkg:golang/%s@%s", m.Path, m.Version)
	return cdx.Component{Type: kind, BOMRef: purl, Name: m.Path, Version: m.Version, PackageURL: purl}
}
