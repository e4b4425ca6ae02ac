import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.Context;
import io.grpc.EquivalentAddressGroup;
import io.grpc.ForwardingServerCall;
import io.grpc.ForwardingServerCallListener;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.NameResolver;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.URI;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.IntConsumer;
import java.util.function.UnaryOperator;
import penstock.lab.Answer;
import penstock.lab.Channel;
import penstock.lab.Key;
import penstock.lab.Outcome;
import penstock.lab.Tally;
import penstock.lab.Task;
import penstock.lab.Work;
import penstock.lab.rpc.ErrorInfo;

/** The lab's peer on grpc-java: proto/penstock/lab/v1/lab.proto, a server and a client. */
public final class Peer {
  private static final Map<String, String> OPTIONS = new HashMap<>();
  private static final Metadata.Key<byte[]> DETAILS = Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);
  private static final Metadata.Key<String> ATTEMPTS = Metadata.Key.of("grpc-previous-rpc-attempts", Metadata.ASCII_STRING_MARSHALLER);
  private static final Context.Key<Metadata> HEADERS = Context.key("headers");

  private static final MethodDescriptor<Work, Answer> DO = method("Lab/Do", MethodDescriptor.MethodType.UNARY, Work.getDefaultInstance(), Answer.getDefaultInstance());
  private static final MethodDescriptor<Work, Answer> WATCH = method("Lab/Watch", MethodDescriptor.MethodType.SERVER_STREAMING, Work.getDefaultInstance(), Answer.getDefaultInstance());
  private static final MethodDescriptor<Task, Outcome> RUN = method("Driver/Run", MethodDescriptor.MethodType.UNARY, Task.getDefaultInstance(), Outcome.getDefaultInstance());
  private static final MethodDescriptor<Key, Tally> COUNT = method("Driver/Count", MethodDescriptor.MethodType.UNARY, Key.getDefaultInstance(), Tally.getDefaultInstance());

  private static <Q extends Message, A extends Message> MethodDescriptor<Q, A> method(String name, MethodDescriptor.MethodType type, Q request, A response) {
    return MethodDescriptor.<Q, A>newBuilder().setType(type).setFullMethodName("penstock.lab.v1." + name)
        .setRequestMarshaller(ProtoUtils.marshaller(request)).setResponseMarshaller(ProtoUtils.marshaller(response)).build();
  }

  /** What the server remembers: a Tally for each key, and what the layers saw. */
  private static final class Memory {
    private final Map<String, Tally.Builder> tallies = new HashMap<>();
    private final Map<String, Integer> seen = new HashMap<>();

    synchronized void change(String key, UnaryOperator<Tally.Builder> change) {
      change.apply(tallies.computeIfAbsent(key, unused -> Tally.newBuilder()));
    }

    synchronized void saw(String layer, Status.Code code) {
      seen.merge(layer + ":" + code, 1, Integer::sum);
    }

    synchronized Tally of(String key) {
      return tallies.getOrDefault(key, Tally.newBuilder()).clone().putAllSeen(seen).build();
    }
  }

  private static final Memory MEMORY = new Memory();
  private static final Map<String, ManagedChannel> CHANNELS = new HashMap<>();

  private static synchronized io.grpc.Channel channelOf(Channel wanted) {
    ManagedChannel known = CHANNELS.get(wanted.getName());
    if (known != null && !wanted.getName().isEmpty()) return known;
    ManagedChannel made = dial(wanted);
    CHANNELS.put(wanted.getName(), made);
    return made;
  }

  @SuppressWarnings("deprecation")
  private static ManagedChannel dial(Channel wanted) {
    NettyChannelBuilder builder = NettyChannelBuilder.forTarget(wanted.getAddressesCount() == 1 ? wanted.getAddresses(0) : "list:///lab")
        .usePlaintext().proxyDetector(unused -> null);
    if (wanted.getAddressesCount() > 1) builder.nameResolverFactory(listOf(wanted.getAddressesList()));
    if (wanted.getKeepaliveMs() > 0) builder.keepAliveTime(wanted.getKeepaliveMs(), TimeUnit.MILLISECONDS);
    builder.keepAliveWithoutCalls(wanted.getKeepaliveWithoutCalls());
    if (wanted.getMaxReceiveBytes() > 0) builder.maxInboundMessageSize(wanted.getMaxReceiveBytes());
    if (wanted.getRoundRobin()) builder.defaultLoadBalancingPolicy("round_robin");
    if (wanted.getNoRetries()) builder.disableRetry(); else builder.enableRetry();
    if (wanted.hasRetry()) {
      Map<String, Object> policy = new HashMap<>();
      policy.put("maxAttempts", (double) wanted.getRetry().getMaxAttempts());
      policy.put("initialBackoff", wanted.getRetry().getInitialBackoffMs() / 1000.0 + "s");
      policy.put("maxBackoff", wanted.getRetry().getInitialBackoffMs() / 1000.0 + "s");
      policy.put("backoffMultiplier", 1.0);
      policy.put("retryableStatusCodes", new ArrayList<Object>(wanted.getRetry().getCodesList()));
      Map<String, Object> method = new HashMap<>();
      method.put("name", Collections.singletonList(Collections.singletonMap("service", "penstock.lab.v1.Lab")));
      method.put("retryPolicy", policy);
      builder.defaultServiceConfig(Collections.singletonMap("methodConfig", Collections.singletonList(method)));
    }
    return builder.build();
  }

  private static NameResolver.Factory listOf(List<String> addresses) {
    List<EquivalentAddressGroup> groups = new ArrayList<>();
    for (String address : addresses) {
      int colon = address.lastIndexOf(':');
      SocketAddress socket = new InetSocketAddress(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
      groups.add(new EquivalentAddressGroup(socket));
    }
    return new NameResolver.Factory() {
      @Override public String getDefaultScheme() { return "list"; }
      @Override public NameResolver newNameResolver(URI target, NameResolver.Args unused) {
        return new NameResolver() {
          @Override public String getServiceAuthority() { return "lab"; }
          @Override public void shutdown() {}
          @Override public void start(Listener2 listener) {
            listener.onResult(ResolutionResult.newBuilder().setAddresses(groups).build());
          }
        };
      }
    };
  }

  private static int begin(Work work) {
    int[] before = new int[1];
    MEMORY.change(work.getKey(), tally -> {
      before[0] = tally.getCalls();
      String attempts = HEADERS.get() == null ? null : HEADERS.get().get(ATTEMPTS);
      if (attempts != null) tally.addPreviousAttempts(Integer.parseInt(attempts));
      return tally.setCalls(before[0] + 1);
    });
    return before[0];
  }

  private static void end(Work work, int before, StreamObserver<Answer> observer) {
    if (work.getCode() == 0 || (work.getFailFirst() > 0 && before >= work.getFailFirst())) {
      observer.onCompleted();
      return;
    }
    Metadata trailers = new Metadata();
    if (work.getDetails()) {
      ErrorInfo info = ErrorInfo.newBuilder().setReason("RECORD_NOT_FOUND").setDomain("lab.penstock").build();
      trailers.put(DETAILS, penstock.lab.rpc.Status.newBuilder().setCode(work.getCode()).setMessage(work.getMessage())
          .addDetails(Any.pack(info)).build().toByteArray());
    }
    observer.onError(Status.fromCodeValue(work.getCode()).withDescription(work.getMessage()).asException(trailers));
  }

  /** False when it left because the call was cancelled. */
  private static boolean steps(Work work, int count, IntConsumer step) {
    for (int i = 0; i < count; ++i) {
      boolean gone = Context.current().isCancelled();
      if (gone && !work.getUnchecked()) {
        MEMORY.change(work.getKey(), tally -> tally.setStopped(tally.getStopped() + 1));
        return false;
      }
      MEMORY.change(work.getKey(), tally -> tally.setSteps(tally.getSteps() + 1).setStepsAfterCancel(tally.getStepsAfterCancel() + (gone ? 1 : 0)));
      step.accept(i);
    }
    MEMORY.change(work.getKey(), tally -> tally.setCompleted(tally.getCompleted() + 1));
    return true;
  }

  private static void pause(int ms) {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException unused) {
      Thread.currentThread().interrupt();
    }
  }

  private static void doWork(Work work, StreamObserver<Answer> observer) {
    if (!work.getNext().isEmpty()) {
      relay(work, observer);
      return;
    }
    int before = begin(work);
    if (work.getFault() == Work.Fault.ERROR) {
      observer.onError(new Exception("a secret of the handler's"));
      return;
    }
    if (work.getFault() == Work.Fault.EXCEPTION) throw new RuntimeException("a secret of the handler's");
    if (!steps(work, work.getSteps(), unused -> pause(work.getStepMs()))) {
      observer.onError(Status.CANCELLED.withDescription("stopped").asException());
      return;
    }
    if (work.getCode() == 0 || (work.getFailFirst() > 0 && before >= work.getFailFirst())) {
      observer.onNext(Answer.newBuilder().setServer(OPTIONS.get("name")).setPayload(ByteString.copyFrom(new byte[work.getReplyBytes()])).build());
    }
    end(work, before, observer);
  }

  private static void relay(Work work, StreamObserver<Answer> observer) {
    io.grpc.Channel channel = channelOf(Channel.newBuilder().setName(work.getNext()).addAddresses(work.getNext()).build());
    Work rest = work.toBuilder().clearNext().build();
    try {
      // The current context hands the deadline and the cancellation down; Context.ROOT is what loses them.
      Answer answer = (work.getDetached() ? Context.ROOT : Context.current())
          .call(() -> ClientCalls.blockingUnaryCall(channel, DO, CallOptions.DEFAULT, rest));
      observer.onNext(answer);
      observer.onCompleted();
    } catch (Exception error) {
      observer.onError(Status.fromThrowable(error).asException());
    }
  }

  private static void watch(Work work, StreamObserver<Answer> observer) {
    int before = begin(work);
    // The stub's API sends headers with the first message alone; Headers has sent them where the request asks for that.
    if (work.getHeadersFirst()) pause(work.getIntervalMs());
    boolean done = steps(work, work.getMessages(), number -> {
      observer.onNext(Answer.newBuilder().setServer(OPTIONS.get("name")).setNumber(number).build());
      if (number + 1 < work.getMessages()) pause(work.getIntervalMs());
    });
    if (done && !((ServerCallStreamObserver<Answer>) observer).isCancelled()) end(work, before, observer);
  }

  private static String reasonOf(Metadata trailers) {
    byte[] details = trailers == null ? null : trailers.get(DETAILS);
    if (details == null) return "";
    try {
      for (Any detail : penstock.lab.rpc.Status.parseFrom(details).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) return detail.unpack(ErrorInfo.class).getReason();
      }
    } catch (com.google.protobuf.InvalidProtocolBufferException unused) {
      // No details that can be read.
    }
    return "";
  }

  private static void callOnce(Task task, Outcome.Builder outcome) {
    Metadata headers = new Metadata();
    task.getMetadataMap().forEach((key, value) -> headers.put(Metadata.Key.of(key, Metadata.ASCII_STRING_MARSHALLER), value));
    io.grpc.Channel channel = ClientInterceptors.intercept(channelOf(task.getChannel()), MetadataUtils.newAttachHeadersInterceptor(headers));
    CallOptions options = task.getDeadlineMs() > 0 ? CallOptions.DEFAULT.withDeadlineAfter(task.getDeadlineMs(), TimeUnit.MILLISECONDS) : CallOptions.DEFAULT;
    Status status = Status.OK;
    Metadata trailers = null;
    String server = "";
    outcome.setMessages(0);
    // In a context of its own: that of the Driver's call must not be handed down.
    Context.CancellableContext context = Context.ROOT.withCancellation();
    Context previous = context.attach();
    try {
      if (task.getStream()) {
        for (Iterator<Answer> answers = ClientCalls.blockingServerStreamingCall(channel, WATCH, options, task.getWork()); answers.hasNext();) {
          server = answers.next().getServer();
          outcome.setMessages(outcome.getMessages() + 1);
          if (outcome.getMessages() == task.getCancelAfter()) context.cancel(null);
        }
      } else {
        server = ClientCalls.blockingUnaryCall(channel, DO, options, task.getWork()).getServer();
        outcome.setMessages(1);
      }
    } catch (StatusRuntimeException error) {
      status = error.getStatus();
      trailers = error.getTrailers();
    } finally {
      context.detach(previous);
      context.cancel(null);
    }
    String description = status.getDescription() == null ? "" : status.getDescription();
    outcome.setCode(status.getCode().value()).setMessage(description).setReason(reasonOf(trailers));
    outcome.putCodes(status.getCode().name(), outcome.getCodesOrDefault(status.getCode().name(), 0) + 1);
    if (!server.isEmpty()) outcome.putServers(server, outcome.getServersOrDefault(server, 0) + 1);
    if (!status.isOk() && outcome.getFailuresCount() < 10 && !outcome.getFailuresList().contains(description)) outcome.addFailures(description);
  }

  private static void run(Task told, StreamObserver<Outcome> observer) {
    Task task = told.toBuilder().setWork(told.getWork().toBuilder().setPayload(ByteString.copyFrom(new byte[told.getRequestBytes()]))).build();
    Outcome.Builder outcome = Outcome.newBuilder();
    long until = System.nanoTime() + task.getDurationMs() * 1_000_000L;
    int made = 0;
    for (; task.getDurationMs() > 0 ? System.nanoTime() < until : made < Math.max(1, task.getCalls()); ++made) {
      if (made > 0) pause(task.getPauseMs());
      callOnce(task, outcome);
    }
    observer.onNext(outcome.setAttempts(made).build());
    observer.onCompleted();
  }

  /** One of auth, metrics, log and barrier around unary handlers. */
  private static final class Layer implements ServerInterceptor {
    private final String kind;

    Layer(String kind) { this.kind = kind; }

    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
      if (kind.equals("auth")) {
        String token = headers.get(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER));
        if (("Bearer " + OPTIONS.get("token")).equals(token)) return next.startCall(call, headers);
        call.close(Status.UNAUTHENTICATED.withDescription("no token"), new Metadata());
        return new ServerCall.Listener<Q>() {};
      }
      if (kind.equals("barrier")) {
        return new ForwardingServerCallListener.SimpleForwardingServerCallListener<Q>(next.startCall(call, headers)) {
          @Override public void onHalfClose() {
            try {
              super.onHalfClose();
            } catch (RuntimeException unused) {
              call.close(Status.INTERNAL.withDescription("the handler failed"), new Metadata());
            }
          }
        };
      }
      return next.startCall(new ForwardingServerCall.SimpleForwardingServerCall<Q, A>(call) {
        @Override public void close(Status status, Metadata trailers) {
          MEMORY.saw(kind, status.getCode());
          super.close(status, trailers);
        }
      }, headers);
    }
  }

  /** Keeps the headers where handlers find them, and sends a stream's at once where its request asks for that. */
  private static final class Headers implements ServerInterceptor {
    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
      boolean[] sent = new boolean[1];
      ServerCall<Q, A> once = new ForwardingServerCall.SimpleForwardingServerCall<Q, A>(call) {
        @Override public void sendHeaders(Metadata sending) {
          if (!sent[0]) super.sendHeaders(sending);
          sent[0] = true;
        }
      };
      ServerCall.Listener<Q> listener = io.grpc.Contexts.interceptCall(Context.current().withValue(HEADERS, headers), once, headers, next);
      return new ForwardingServerCallListener.SimpleForwardingServerCallListener<Q>(listener) {
        @Override public void onMessage(Q message) {
          if (message instanceof Work && ((Work) message).getHeadersFirst()) once.sendHeaders(new Metadata());
          super.onMessage(message);
        }
      };
    }
  }

  private static NettyServerBuilder builder() {
    return NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0)).executor(Executors.newCachedThreadPool());
  }

  public static void main(String[] arguments) throws Exception {
    for (int at = 0; at + 1 < arguments.length; at += 2) OPTIONS.put(arguments[at].substring(2), arguments[at + 1]);
    NettyServerBuilder lab = builder();
    if (OPTIONS.containsKey("permit-ping-ms")) {
      lab.permitKeepAliveTime(Long.parseLong(OPTIONS.get("permit-ping-ms")), TimeUnit.MILLISECONDS).permitKeepAliveWithoutCalls(true);
    }
    if (OPTIONS.containsKey("connection-age-ms")) lab.maxConnectionAge(Long.parseLong(OPTIONS.get("connection-age-ms")), TimeUnit.MILLISECONDS);
    if (OPTIONS.containsKey("max-receive-bytes")) lab.maxInboundMessageSize(Integer.parseInt(OPTIONS.get("max-receive-bytes")));
    List<ServerInterceptor> interceptors = new ArrayList<>();
    interceptors.add(new Headers());
    if (OPTIONS.containsKey("layers")) for (String kind : OPTIONS.get("layers").split(",")) interceptors.add(new Layer(kind));
    // Outside in so far; of this list the last one is called first.
    Collections.reverse(interceptors);
    Server server = lab.addService(ServerInterceptors.intercept(ServerServiceDefinition.builder("penstock.lab.v1.Lab")
        .addMethod(DO, ServerCalls.asyncUnaryCall(Peer::doWork))
        .addMethod(WATCH, ServerCalls.asyncServerStreamingCall(Peer::watch)).build(), interceptors)).build().start();
    Server driver = builder().addService(ServerServiceDefinition.builder("penstock.lab.v1.Driver")
        .addMethod(RUN, ServerCalls.asyncUnaryCall(Peer::run))
        .addMethod(COUNT, ServerCalls.asyncUnaryCall((Key key, StreamObserver<Tally> observer) -> {
          observer.onNext(MEMORY.of(key.getKey()));
          observer.onCompleted();
        })).build()).build().start();
    System.out.println("ready " + server.getPort() + " " + driver.getPort());
    server.awaitTermination();
  }
}
