// A JSON gateway in front of a Lab server, made by grpc-gateway's generator: REST comes in, gRPC goes out.
//
//	gateway --target HOST:PORT
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/runtime"
	"google.golang.org/grpc"

	"lab/labpb"
)

func main() {
	target := flag.String("target", "", "")
	flag.Parse()
	mux := runtime.NewServeMux()
	options := []grpc.DialOption{grpc.WithInsecure(), grpc.WithNoProxy()}
	if err := labpb.RegisterLabHandlerFromEndpoint(context.Background(), mux, "passthrough:///"+*target, options); err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port, 0)
	panic(http.Serve(listener, mux))
}
