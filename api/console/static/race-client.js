// A worker of the race: a thread, so that it can really be stopped. Like a worker of `fencelock demo`, it deposits
// under the lock and is as careful as it can be without storage that checks tokens.
import { call } from './api.js';

let me;
let replied; // takes the balance that the page keeps, which is the storage without a guard
const clock = () => performance.timeOrigin + performance.now();
const report = (kind, more = {}) => postMessage({ kind, at: clock(), ...more });
const ask = (method, path, body, headers, accept) => call(method, `../${path}`, {
  body: body && JSON.stringify(body), headers: { ...headers, ...(body ? { 'Content-Type': 'application/json' } : {}) }, accept: [accept], token: me.token,
});

// freeze stops this thread: no timer of its own, no answer, nothing runs
// meanwhile. Where the browser allows it, it sleeps instead of spinning.
function freeze(ms) {
  const until = performance.now() + ms;
  if (self.crossOriginIsolated) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  while (performance.now() < until);
}

async function acquire() {
  const request = { resource: me.resource, holder: `worker-${me.who}`, ttl_ms: me.ttl };
  let sent = clock();
  let lease = await ask('POST', 'locks', request, {}, 409);
  if (lease.status === 409) {
    report('held', { left: lease.remaining_ms });
    lease = await ask('POST', 'locks', { ...request, wait_ms: 15_000 });
    sent = clock();
  }
  const left = () => sent + lease.validity_ms - clock();
  report('acquired', { token: lease.fencing_token, left: left() });
  return { lease, left, fenced: { 'Fencing-Token': `${lease.fencing_token}`, ...(lease.fencing_proof ? { 'Fencing-Proof': lease.fencing_proof } : {}) } };
}

async function deposit() {
  const { lease, left, fenced } = await acquire();
  const guarded = `guarded/${encodeURIComponent(me.resource)}`;
  const shown = me.guarded ? { token: lease.fencing_token } : {};
  let balance = me.opening;
  if (balance === undefined) {
    if (!me.guarded) postMessage({ reads: true });
    balance = me.guarded ? (await ask('POST', guarded, undefined, fenced)).value : await new Promise((resolve) => { replied = resolve; });
    if (left() <= 0) throw new Error(`Worker ${me.who} lost its lease before it could write. Run it again.`);
    report('read', { balance, ...shown });
    report('checked', { left: left() });
    balance += me.deposit; // any check before this point may be outdated after it
    await new Promise((resolve) => { setTimeout(resolve, me.work); });
  }
  if (me.freeze) {
    report('stopped');
    freeze(me.freeze);
    report('continued');
    me.freeze = 0; // not again after a refusal
  }
  const written = me.guarded ? await ask('PUT', guarded, balance, fenced, 412) : postMessage({ writes: balance });
  if (written?.status === 412) {
    report('refused', { token: lease.fencing_token, highest: written.highest_token });
    return deposit();
  }
  report('wrote', { balance, ...shown });
  const released = await ask('DELETE', 'leases/current', undefined, { 'Fencelock-Lease': lease.lease_id }, 404);
  report(released?.status === 404 ? 'too-late' : 'released');
}

onmessage = async ({ data }) => {
  if ('balance' in data) return replied(data.balance);
  me = data;
  try {
    await deposit();
    postMessage({ done: true });
  } catch (error) {
    postMessage({ failed: error.status === 501 ? 'This server keeps no guarded records (FENCELOCK_DATABASE_URL or FENCELOCK_DATA), so there is no guard to race against.'
      : `Worker ${me.who} could not go on: ${error.message}` });
  }
};
