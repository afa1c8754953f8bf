// A client of the race: a worker thread, so that it can really be frozen. It
// does what many programs do: take the lock, look that it is valid, write.

let me;
const clock = () => performance.timeOrigin + performance.now();
const tell = (step, more = {}) => postMessage({ step, at: clock(), ...more });

async function call(method, path, { body, headers = {} } = {}) {
  const response = await fetch(me.base + path, {
    method, body, cache: 'no-store', headers: { ...me.headers, ...headers, ...(body ? { 'Content-Type': 'application/json' } : {}) },
  });
  const answer = response.status === 204 ? {} : await response.json();
  return { status: response.status, answer };
}

// freeze stops this thread: no timer of its own, no answer, nothing runs
// meanwhile. Where the browser allows it, it sleeps instead of spinning.
function freeze(ms) {
  const until = performance.now() + ms;
  if (self.crossOriginIsolated) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  while (performance.now() < until);
}

async function run() {
  tell('begins');
  const holder = `client ${me.name.toUpperCase()}`;
  if (me.wait) tell('waits', { text: `asks for the lock and waits in the queue: POST /locks with wait_ms ${me.wait}` });
  const sent = clock();
  const lease = await call('POST', 'locks', { body: JSON.stringify({ resource: me.resource, holder, ttl_ms: me.ttl, wait_ms: me.wait }) });
  if (lease.status !== 201) throw refusal('take the lock', lease);
  const { fencing_token: token, fencing_proof: minted, lease_id: id, validity_ms: validity } = lease.answer;
  const ends = sent + me.ttl;
  tell('holds', { token, ends: me.wait ? clock() + me.ttl : ends, text: `holds the lock for ${me.ttl / 1000} s, with fencing token ${token}` });

  const guarded = `guarded/${encodeURIComponent(me.resource)}`;
  const fenced = { 'Fencing-Token': String(token), ...(minted ? { 'Fencing-Proof': minted } : {}) };
  const claim = await call('POST', guarded, { headers: fenced });
  if (claim.status === 501) throw new Error('This server keeps no guarded records (FENCELOCK_DATABASE_URL or FENCELOCK_DATA), so there is no guard to race against.');
  if (claim.status !== 200) throw refusal('claim the record', claim);
  tell('claimed', { text: 'claims the record and reads it: POST /guarded/… with its token, 200' });

  if (me.freeze) {
    const left = Math.round(validity - (clock() - sent));
    tell('checked', { text: `checks its lease: valid for another ${left} ms. So it may write…` });
    tell('freezes', { text: '…and freezes' });
    freeze(me.freeze);
    tell('wakes', { text: `wakes up after ${me.freeze / 1000} s. It has checked its lease already, so it writes` });
  }
  tell('writes-plain', { token, text: 'writes to the storage that trusts the lock: taken' });
  const written = await call('PUT', guarded, { headers: fenced, body: JSON.stringify({ by: holder }) });
  if (written.status !== 200 && written.status !== 412) throw refusal('write', written);
  tell('wrote', {
    token, status: written.status, highest: written.answer.highest_token,
    text: written.status === 200
      ? 'writes to the guarded storage: 200'
      : `writes to the guarded storage: 412 Precondition Failed. ${written.answer.title}: presented ${written.answer.presented}, highest ${written.answer.highest_token}`,
  });
  await call('DELETE', 'leases/current', { headers: { 'Fencelock-Lease': id } }); // 404 tells A that its lease has ended; it is not asked here
  tell('done', me.freeze ? {} : { text: 'releases the lock' });
}

function refusal(what, { status, answer }) {
  return new Error(`The client could not ${what}: ${status} ${answer.detail || answer.title || ''}`);
}

onmessage = async ({ data }) => {
  me = data;
  try {
    await run();
  } catch (error) {
    tell('failed', { text: error.message });
  }
};
