// Command postrider is Postrider's one binary, with a subcommand for each part.
//
// It turns flags and POSTRIDER_* variables into configuration, reports all that is wrong with it at once, and runs the
// part until it is told to stop. It holds no logic. Start at main.go; each subcommand has a file of its own.
package main
