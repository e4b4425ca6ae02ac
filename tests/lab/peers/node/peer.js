// The lab's peer on @grpc/grpc-js: proto/penstock/lab/v1/lab.proto, a server and a client.
//
//     NODE_PATH=FOLDER/node_modules LAB_PROTO_PATH=proto node peer.js --name NAME [--permit-ping-ms N] [--layers auth,metrics,log]
'use strict';

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const protobuf = require('protobufjs');
const path = require('path');

const options = {name: '', 'permit-ping-ms': '0', 'connection-age-ms': '0', 'max-receive-bytes': '0', token: '', layers: ''};
for (let at = 2; at < process.argv.length; at += 2) options[process.argv[at].slice(2)] = process.argv[at + 1];

const protos = process.env.LAB_PROTO_PATH;
const lab = grpc.loadPackageDefinition(loader.loadSync('penstock/lab/v1/lab.proto',
  {includeDirs: [protos], keepCase: true, defaults: true, enums: String, longs: Number})).penstock.lab.v1;
const rpc = protobuf.loadSync(path.join(protos, 'google/rpc/error_info.proto'));
const [RpcStatus, ErrorInfo] = ['google.rpc.Status', 'google.rpc.ErrorInfo'].map((name) => rpc.lookupType(name));
const ERROR_INFO = 'type.googleapis.com/google.rpc.ErrorInfo';

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// What the server remembers: a Tally for each key, and what the layers saw.
const tallies = new Map();
const seen = {};
const tallyOf = (key) => {
  if (!tallies.has(key)) tallies.set(key, {calls: 0, stopped: 0, completed: 0, steps: 0, steps_after_cancel: 0, previous_attempts: []});
  return tallies.get(key);
};
const saw = (layer, code) => {
  const name = `${layer}:${grpc.status[code]}`;
  seen[name] = (seen[name] || 0) + 1;
};

const channels = new Map();
function clientOf(wanted) {
  if (wanted.name && channels.has(wanted.name)) return channels.get(wanted.name);
  const settings = {'grpc.enable_http_proxy': 0, 'grpc.use_local_subchannel_pool': 1,
    'grpc.keepalive_permit_without_calls': wanted.keepalive_without_calls ? 1 : 0};
  if (wanted.keepalive_ms) settings['grpc.keepalive_time_ms'] = wanted.keepalive_ms;
  if (wanted.max_receive_bytes) settings['grpc.max_receive_message_length'] = wanted.max_receive_bytes;
  if (wanted.no_retries) settings['grpc.enable_retries'] = 0;
  const config = {methodConfig: []};
  if (wanted.round_robin) config.loadBalancingConfig = [{round_robin: {}}];
  if (wanted.retry) {
    const backoff = `${wanted.retry.initial_backoff_ms / 1000}s`;
    config.methodConfig.push({name: [{service: 'penstock.lab.v1.Lab'}], retryPolicy: {maxAttempts: wanted.retry.max_attempts,
      initialBackoff: backoff, maxBackoff: backoff, backoffMultiplier: 1,
      retryableStatusCodes: wanted.retry.codes}});
  }
  settings['grpc.service_config'] = JSON.stringify(config);
  const target = wanted.addresses.length === 1 ? wanted.addresses[0] : 'ipv4:' + wanted.addresses.join(',');
  const client = new lab.Lab(target, grpc.credentials.createInsecure(), settings);
  channels.set(wanted.name, client);
  return client;
}

function begin(work, call) {
  const tally = tallyOf(work.key);
  for (const value of call.metadata.get('grpc-previous-rpc-attempts')) tally.previous_attempts.push(Number(value));
  return tally.calls++;
}

// The error that the call ends with; null for none.
function endOf(work, before) {
  if (work.code === 0 || (work.fail_first > 0 && before >= work.fail_first)) return null;
  const error = {code: work.code, details: work.message, metadata: new grpc.Metadata()};
  if (work.details) {
    const value = ErrorInfo.encode({reason: 'RECORD_NOT_FOUND', domain: 'lab.penstock'}).finish();
    error.metadata.set('grpc-status-details-bin', Buffer.from(RpcStatus.encode(
      {code: work.code, message: work.message, details: [{type_url: ERROR_INFO, value}]}).finish()));
  }
  return error;
}

// False when it left because the call was cancelled.
async function takeSteps(work, count, call, step) {
  const tally = tallyOf(work.key);
  for (let i = 0; i < count; ++i) {
    if (call.cancelled && !work.unchecked) {
      ++tally.stopped;
      return false;
    }
    ++tally.steps;
    if (call.cancelled) ++tally.steps_after_cancel;
    await step(i);
  }
  ++tally.completed;
  return true;
}

function doWork(call, callback) {
  const work = call.request;
  if (work.next) {
    const rest = {...work, next: ''};
    // `parent` hands the deadline and the cancellation down.
    return clientOf({name: work.next, addresses: [work.next]}).Do(rest, work.detached ? {} : {parent: call}, callback);
  }
  const before = begin(work, call);
  if (work.fault === 'ERROR') return callback(new Error("a secret of the handler's"));
  if (work.fault === 'EXCEPTION') throw new Error("a secret of the handler's");
  takeSteps(work, work.steps, call, () => pause(work.step_ms)).then((done) => {
    if (!done) return callback({code: grpc.status.CANCELLED, details: 'stopped'});
    const error = endOf(work, before);
    if (error) return callback(error);
    callback(null, {server: options.name, payload: Buffer.alloc(work.reply_bytes, 'x')});
  });
}

function watch(call) {
  const work = call.request;
  const before = begin(work, call);
  if (work.headers_first) call.sendMetadata(new grpc.Metadata());
  pause(work.headers_first ? work.interval_ms : 0).then(() => takeSteps(work, work.messages, call, (number) => {
    call.write({server: options.name, number});
    return number + 1 < work.messages ? pause(work.interval_ms) : null;
  })).then(() => {
    const error = endOf(work, before);
    if (error) call.emit('error', error);
    else call.end();
  });
}

function reasonOf(error) {
  for (const value of error.metadata ? error.metadata.get('grpc-status-details-bin') : []) {
    for (const detail of RpcStatus.decode(value).details) {
      if (detail.type_url === ERROR_INFO) return ErrorInfo.decode(detail.value).reason;
    }
  }
  return '';
}

function callOnce(task, outcome) {
  const client = clientOf(task.channel);
  const metadata = new grpc.Metadata();
  for (const [key, value] of Object.entries(task.metadata)) metadata.set(key, value);
  const settings = task.deadline_ms ? {deadline: Date.now() + task.deadline_ms} : {};
  let server = '';
  outcome.messages = 0;
  return new Promise((done) => {
    if (!task.stream) {
      client.Do(task.work, metadata, settings, (error, answer) => {
        if (!error) [server, outcome.messages] = [answer.server, 1];
        done(error);
      });
      return;
    }
    const stream = client.Watch(task.work, metadata, settings);
    let error = null;
    stream.on('data', (answer) => {
      server = answer.server;
      if (++outcome.messages === task.cancel_after) stream.cancel();
    });
    stream.on('error', (thrown) => { error = thrown; });
    stream.on('status', () => setImmediate(() => done(error)));
  }).then((error) => {
    const code = error ? error.code : grpc.status.OK;
    outcome.code = code;
    outcome.message = error ? error.details || '' : '';
    outcome.reason = error ? reasonOf(error) : '';
    outcome.codes[grpc.status[code]] = (outcome.codes[grpc.status[code]] || 0) + 1;
    if (server) outcome.servers[server] = (outcome.servers[server] || 0) + 1;
    if (error && outcome.failures.length < 10 && !outcome.failures.includes(outcome.message)) outcome.failures.push(outcome.message);
  });
}

async function run(call, callback) {
  const task = call.request;
  if (task.request_bytes) task.work.payload = Buffer.alloc(task.request_bytes, 'x');
  const outcome = {codes: {}, servers: {}, failures: []};
  const until = Date.now() + task.duration_ms;
  let made = 0;
  for (; task.duration_ms ? Date.now() < until : made < Math.max(1, task.calls); ++made) {
    if (made > 0) await pause(task.pause_ms);
    await callOnce(task, outcome);
  }
  outcome.attempts = made;
  callback(null, outcome);
}

// One of auth, metrics, log and barrier, as grpc-js has server interceptors: in front of the handler on the way in, behind it
// on the way out. A barrier there is none: an exception never passes through them.
function layer(kind) {
  return (_method, call) => new grpc.ServerInterceptingCall(call, {
    start: (next) => next({
      onReceiveMetadata: (metadata, proceed) => {
        if (kind === 'auth' && metadata.get('authorization')[0] !== 'Bearer ' + options.token) {
          call.sendStatus({code: grpc.status.UNAUTHENTICATED, details: 'no token'});
          return;
        }
        proceed(metadata);
      },
    }),
    sendStatus: (status, next) => {
      if (kind !== 'auth') saw(kind, status.code);
      next(status);
    },
  });
}

function serve(service, handlers, settings = {}) {
  const server = new grpc.Server(settings);
  server.addService(service, handlers);
  return new Promise((done, failed) => server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(),
    (error, port) => (error ? failed(error) : done(port))));
}

const settings = {};
if (options['connection-age-ms'] !== '0') settings['grpc.max_connection_age_ms'] = Number(options['connection-age-ms']);
if (options['max-receive-bytes'] !== '0') settings['grpc.max_receive_message_length'] = Number(options['max-receive-bytes']);
if (options.layers) settings.interceptors = options.layers.split(',').map(layer);

Promise.all([
  serve(lab.Lab.service, {Do: doWork, Watch: watch}, settings),
  serve(lab.Driver.service, {Run: run, Count: (call, callback) => callback(null, {...tallyOf(call.request.key), seen})}),
]).then((ports) => console.log('ready', ...ports));
