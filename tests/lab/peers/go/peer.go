// The lab's peer on grpc-go: proto/penstock/lab/v1/lab.proto, a server and a client.
//
//	peer --name NAME [--permit-ping-ms N] [--layers auth,metrics,log]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"lab/labpb"
)

var (
	name            = flag.String("name", "", "")
	permitPingMs    = flag.Int("permit-ping-ms", 0, "")
	connectionAgeMs = flag.Int("connection-age-ms", 0, "")
	maxReceiveBytes = flag.Int("max-receive-bytes", 0, "")
	token           = flag.String("token", "", "")
	layers          = flag.String("layers", "", "")
)

// Codes as their numbers' names are written everywhere but in Go.
var codeNames = []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL",
	"UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

// What the server remembers: a Tally for each key, and what the layers saw.
type memory struct {
	sync.Mutex
	tallies map[string]*labpb.Tally
	seen    map[string]int32
}

var remembered = memory{tallies: map[string]*labpb.Tally{}, seen: map[string]int32{}}

func (m *memory) change(key string, change func(*labpb.Tally)) {
	m.Lock()
	defer m.Unlock()
	if m.tallies[key] == nil {
		m.tallies[key] = &labpb.Tally{}
	}
	change(m.tallies[key])
}

func (m *memory) saw(layer string, code codes.Code) {
	m.Lock()
	defer m.Unlock()
	m.seen[layer+":"+codeNames[code]]++
}

type clients struct {
	sync.Mutex
	connections map[string]*grpc.ClientConn
}

var channels = clients{connections: map[string]*grpc.ClientConn{}}

func (c *clients) of(wanted *labpb.Channel) (labpb.LabClient, error) {
	c.Lock()
	defer c.Unlock()
	connection := c.connections[wanted.GetName()]
	if connection == nil || wanted.GetName() == "" {
		var err error
		if connection, err = dial(wanted); err != nil {
			return nil, err
		}
		c.connections[wanted.GetName()] = connection
	}
	return labpb.NewLabClient(connection), nil
}

func dial(wanted *labpb.Channel) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithInsecure(), grpc.WithNoProxy()}
	if wanted.GetKeepaliveMs() > 0 {
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: time.Duration(wanted.GetKeepaliveMs()) * time.Millisecond, PermitWithoutStream: wanted.GetKeepaliveWithoutCalls()}))
	}
	if wanted.GetMaxReceiveBytes() > 0 {
		options = append(options, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(wanted.GetMaxReceiveBytes()))))
	}
	if wanted.GetNoRetries() {
		options = append(options, grpc.WithDisableRetry())
	}
	var config []string
	if wanted.GetRoundRobin() {
		config = append(config, `"loadBalancingConfig":[{"round_robin":{}}]`)
	}
	if retry := wanted.GetRetry(); retry != nil {
		config = append(config, fmt.Sprintf(`"methodConfig":[{"name":[{"service":"penstock.lab.v1.Lab"}],"retryPolicy":{"maxAttempts":%[1]d,`+
			`"initialBackoff":"%[2]fs","maxBackoff":"%[2]fs","backoffMultiplier":1,"retryableStatusCodes":["%[3]s"]}}]`,
			retry.GetMaxAttempts(), float64(retry.GetInitialBackoffMs())/1000, strings.Join(retry.GetCodes(), `","`)))
	}
	options = append(options, grpc.WithDefaultServiceConfig("{"+strings.Join(config, ",")+"}"))
	if len(wanted.GetAddresses()) == 1 {
		return grpc.Dial("passthrough:///"+wanted.GetAddresses()[0], options...)
	}
	list := manual.NewBuilderWithScheme("list")
	var state resolver.State
	for _, address := range wanted.GetAddresses() {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	list.InitialState(state)
	return grpc.Dial("list:///lab", append(options, grpc.WithResolvers(list))...)
}

type labServer struct{}

func begin(ctx context.Context, work *labpb.Work) (before int32) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	remembered.change(work.GetKey(), func(tally *labpb.Tally) {
		before = tally.Calls
		tally.Calls++
		for _, value := range incoming.Get("grpc-previous-rpc-attempts") {
			if number, err := strconv.Atoi(value); err == nil {
				tally.PreviousAttempts = append(tally.PreviousAttempts, int32(number))
			}
		}
	})
	return before
}

func end(work *labpb.Work, before int32) error {
	if work.GetCode() == 0 || (work.GetFailFirst() > 0 && before >= work.GetFailFirst()) {
		return nil
	}
	made := status.New(codes.Code(work.GetCode()), work.GetMessage())
	if work.GetDetails() {
		detailed, err := made.WithDetails(&errdetails.ErrorInfo{Reason: "RECORD_NOT_FOUND", Domain: "lab.penstock"})
		if err != nil {
			return err
		}
		made = detailed
	}
	return made.Err()
}

// False when it left because the call was cancelled.
func steps(ctx context.Context, work *labpb.Work, count int32, step func(int32)) bool {
	for i := int32(0); i < count; i++ {
		gone := ctx.Err() != nil
		if gone && !work.GetUnchecked() {
			remembered.change(work.GetKey(), func(tally *labpb.Tally) { tally.Stopped++ })
			return false
		}
		remembered.change(work.GetKey(), func(tally *labpb.Tally) {
			tally.Steps++
			if gone {
				tally.StepsAfterCancel++
			}
		})
		step(i)
	}
	remembered.change(work.GetKey(), func(tally *labpb.Tally) { tally.Completed++ })
	return true
}

func (labServer) Do(ctx context.Context, work *labpb.Work) (*labpb.Answer, error) {
	if work.GetNext() != "" {
		stub, err := channels.of(&labpb.Channel{Name: work.GetNext(), Addresses: []string{work.GetNext()}})
		if err != nil {
			return nil, err
		}
		rest := *work
		rest.Next = ""
		if work.GetDetached() {
			ctx = context.Background()
		}
		return stub.Do(ctx, &rest)
	}
	before := begin(ctx, work)
	switch work.GetFault() {
	case labpb.Work_ERROR:
		return nil, errors.New("a secret of the handler's")
	case labpb.Work_EXCEPTION:
		panic("a secret of the handler's")
	}
	if !steps(ctx, work, work.GetSteps(), func(int32) { time.Sleep(time.Duration(work.GetStepMs()) * time.Millisecond) }) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &labpb.Answer{Server: *name, Payload: make([]byte, work.GetReplyBytes())}, end(work, before)
}

func (labServer) Watch(work *labpb.Work, stream labpb.Lab_WatchServer) error {
	before := begin(stream.Context(), work)
	if work.GetHeadersFirst() {
		if err := stream.SendHeader(nil); err != nil {
			return err
		}
		time.Sleep(time.Duration(work.GetIntervalMs()) * time.Millisecond)
	}
	steps(stream.Context(), work, work.GetMessages(), func(i int32) {
		// What Send returns after the cancellation is for a handler that checks.
		_ = stream.Send(&labpb.Answer{Server: *name, Number: i})
		if i+1 < work.GetMessages() {
			time.Sleep(time.Duration(work.GetIntervalMs()) * time.Millisecond)
		}
	})
	return end(work, before)
}

type driverServer struct{}

func (driverServer) Count(_ context.Context, key *labpb.Key) (*labpb.Tally, error) {
	remembered.Lock()
	defer remembered.Unlock()
	var tally labpb.Tally
	if known := remembered.tallies[key.GetKey()]; known != nil {
		tally = *known
	}
	tally.Seen = map[string]int32{}
	for what, count := range remembered.seen {
		tally.Seen[what] = count
	}
	return &tally, nil
}

func (driverServer) Run(_ context.Context, task *labpb.Task) (*labpb.Outcome, error) {
	if task.GetRequestBytes() > 0 {
		task.Work.Payload = make([]byte, task.GetRequestBytes())
	}
	outcome := &labpb.Outcome{Codes: map[string]int32{}, Servers: map[string]int32{}}
	until := time.Now().Add(time.Duration(task.GetDurationMs()) * time.Millisecond)
	for made := int32(0); ; made++ {
		if task.GetDurationMs() > 0 && !time.Now().Before(until) || task.GetDurationMs() == 0 && made > 0 && made >= task.GetCalls() {
			outcome.Attempts = made
			return outcome, nil
		}
		if made > 0 {
			time.Sleep(time.Duration(task.GetPauseMs()) * time.Millisecond)
		}
		callOnce(task, outcome)
	}
}

func callOnce(task *labpb.Task, outcome *labpb.Outcome) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if task.GetDeadlineMs() > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(task.GetDeadlineMs())*time.Millisecond)
		defer cancel()
	}
	ctx = metadata.NewOutgoingContext(ctx, metadata.New(task.GetMetadata()))
	outcome.Messages = 0
	server := ""
	stub, err := channels.of(task.GetChannel())
	if err == nil && task.GetStream() {
		var stream labpb.Lab_WatchClient
		if stream, err = stub.Watch(ctx, task.GetWork()); err == nil {
			var answer *labpb.Answer
			for answer, err = stream.Recv(); err == nil; answer, err = stream.Recv() {
				server = answer.GetServer()
				if outcome.Messages++; outcome.Messages == task.GetCancelAfter() {
					cancel()
				}
			}
			if err.Error() == "EOF" {
				err = nil
			}
		}
	} else if err == nil {
		var answer *labpb.Answer
		if answer, err = stub.Do(ctx, task.GetWork()); err == nil {
			server = answer.GetServer()
			outcome.Messages = 1
		}
	}
	told := status.Convert(err)
	outcome.Code, outcome.Message, outcome.Reason = int32(told.Code()), told.Message(), ""
	for _, detail := range told.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			outcome.Reason = info.GetReason()
		}
	}
	outcome.Codes[codeNames[told.Code()]]++
	if server != "" {
		outcome.Servers[server]++
	}
	if err != nil && len(outcome.Failures) < 10 && !strings.Contains("\n"+strings.Join(outcome.Failures, "\n")+"\n", "\n"+told.Message()+"\n") {
		outcome.Failures = append(outcome.Failures, told.Message())
	}
}

// One of auth, metrics, log and barrier around unary handlers.
func layer(kind string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request interface{}, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer interface{}, err error) {
		switch kind {
		case "auth":
			incoming, _ := metadata.FromIncomingContext(ctx)
			if strings.Join(incoming.Get("authorization"), "") != "Bearer "+*token {
				return nil, status.Error(codes.Unauthenticated, "no token")
			}
			return handler(ctx, request)
		case "barrier":
			defer func() {
				if recover() != nil {
					err = status.Error(codes.Internal, "the handler failed")
				}
			}()
			return handler(ctx, request)
		}
		answer, err = handler(ctx, request)
		remembered.saw(kind, status.Code(err))
		return answer, err
	}
}

func listen() net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	return listener
}

func main() {
	flag.Parse()
	var options []grpc.ServerOption
	if *permitPingMs > 0 {
		options = append(options, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: time.Duration(*permitPingMs) * time.Millisecond, PermitWithoutStream: true}))
	}
	if *connectionAgeMs > 0 {
		options = append(options, grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: time.Duration(*connectionAgeMs) * time.Millisecond}))
	}
	if *maxReceiveBytes > 0 {
		options = append(options, grpc.MaxRecvMsgSize(*maxReceiveBytes))
	}
	var chain []grpc.UnaryServerInterceptor
	for _, kind := range strings.Split(*layers, ",") {
		if kind != "" {
			chain = append(chain, layer(kind))
		}
	}
	lab := grpc.NewServer(append(options, grpc.ChainUnaryInterceptor(chain...))...)
	labpb.RegisterLabServer(lab, labServer{})
	driver := grpc.NewServer()
	labpb.RegisterDriverServer(driver, driverServer{})
	labListener, driverListener := listen(), listen()
	go driver.Serve(driverListener)
	fmt.Println("ready", labListener.Addr().(*net.TCPAddr).Port, driverListener.Addr().(*net.TCPAddr).Port)
	lab.Serve(labListener)
}
