// +build details

package main

// Registers google.rpc.ErrorInfo and its siblings: without them the gateway cannot write an error's details as JSON.
import _ "google.golang.org/genproto/googleapis/rpc/errdetails"
