// The race of the console, with its clients and its drawing. This page has no server, so it
// plays one: a lock with a TTL and a queue, and a record that refuses stale tokens.
let token = 33, held = null, waiting = null, mark = 0;

function grant({ ttl_ms }, respond) {
  held = { token: ++token, over: performance.now() + ttl_ms };
  respond(201, { fencing_token: held.token, lease_id: `lease-${held.token}`, validity_ms: ttl_ms - 17 });
}

function acquire(body, respond) {
  if (!held || held.over <= performance.now()) grant(body, respond);
  else waiting = setTimeout(() => grant(body, respond), held.over - performance.now());
}

// under does what a guard does: compare and raise the mark in one step.
function under(presented, respond) {
  if (presented < mark) {
    respond(412, { title: 'The fencing token is stale', presented, highest_token: mark });
  } else {
    mark = presented;
    respond(200, {});
  }
}

function serve({ method, path, headers, body }, respond) {
  if (path.endsWith('/locks')) acquire(JSON.parse(body), respond);
  else if (path.includes('/guarded/')) under(Number(headers['Fencing-Token']), respond);
  else if (method === 'DELETE') respond(204, {});
}

// A client runs in a worker, as in the console; its requests come to this page.
const BrowserWorker = window.Worker;
window.Worker = class {
  #worker;

  constructor(_, options) {
    this.#worker = new BrowserWorker(new URL('race-worker.js', import.meta.url), options);
    this.#worker.onerror = (error) => this.onerror(error);
    this.#worker.onmessage = ({ data }) => {
      if (!data.call) this.onmessage({ data });
      else serve(data, (status, body) => this.#worker.postMessage({ reply: data.call, status, body }));
    };
  }

  postMessage(message) { this.#worker.postMessage(message); }

  terminate() { this.#worker.terminate(); }
};

const { Race } = await import('./console/race.js');
const race = new Race((id) => document.getElementById(id));
document.getElementById('start').hidden = false;
document.getElementById('run').addEventListener('click', () => {
  clearTimeout(waiting);
  held = null;
  race.run();
});
