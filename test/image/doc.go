// Command image builds Postrider's container image without a container engine: it cross-compiles the binary, adds root
// certificates and a list of what is inside (SBOM), and writes archives that every engine loads. `make image` runs it.
//
// What goes in is the same, byte for byte, whenever the same sources are built by the same Go. It is a module of its own,
// since nothing of it must become the product's. Start reading at main.go.
package main
