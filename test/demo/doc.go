// Command demo shows Postrider's main job on a stack of its own: a real API server, a real Postgres, and the parts as
// processes on loopback. It checks each thing that it shows, ends with "demo: N checks passed" and exit status 0 only if
// all were seen, and leaves nothing behind. With the argument "up" it starts the same stack and leaves it running.
//
// Start at main.go; the story is told in scenes.go.
package main
