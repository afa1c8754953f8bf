// Calls of the API, with the bearer token that was typed in, if one was. The
// page is at …/console, so the API's paths are relative to it.

const KEY = 'fencelock-bearer';
const PATIENCE = 20_000; // ms: a server that has not answered by then may never

export const bearer = {
  get: () => sessionStorage.getItem(KEY) ?? '',
  set: (token) => (token ? sessionStorage.setItem(KEY, token) : sessionStorage.removeItem(KEY)),
};

export function headers(extra = {}, token = bearer.get()) {
  return token ? { ...extra, Authorization: `Bearer ${token}` } : extra;
}

// Refusal is an answer that is none: a problem, or no answer at all (status 0).
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

export async function refusalOf(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch { /* a proxy's page: the status says enough */ }
  return new Refusal(response.status, problem);
}

// call sends a request and returns the response's JSON, null without any. options are
// those of fetch, with accept (statuses beside 2xx) and token (in place of the user's).
export async function call(method, path, options = {}) {
  try {
    const response = await fetch(path, {
      cache: 'no-store', signal: AbortSignal.timeout(PATIENCE), ...options, method, headers: headers(options.headers, options.token),
    });
    if (!response.ok && !(options.accept ?? []).includes(response.status)) throw await refusalOf(response);
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    if (error.name !== 'TimeoutError' && !(error instanceof TypeError)) throw error;
    throw new Refusal(0, { detail: 'The server does not respond.' });
  }
}

// callLock is call for one lock. The header names it, too: a proxy may change the path.
export function callLock(method, resource) {
  const name = encodeURIComponent(resource);
  return call(method, `locks/${name}`, { headers: { 'Fencelock-Resource': name } });
}

// stream reads GET /events and calls on.event for each, on.live when the past
// has been told, and on.word for whatever comes, until the stream ends. It throws a Refusal, or the reading's error.
export async function stream(query, lastID, on, signal) {
  const response = await fetch(`events${query}`, {
    cache: 'no-store', signal, headers: headers(lastID ? { 'Last-Event-ID': lastID } : {}),
  });
  if (!response.ok) throw await refusalOf(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    on.word?.();
    text += value;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      take(text.slice(0, end), on);
      text = text.slice(end + 2);
    }
  }
}

function take(block, on) {
  const event = { kind: '', id: '', data: '' };
  for (const line of block.split('\n')) {
    if (line === ': live') on.live?.();
    else if (line.startsWith('id: ')) event.id = line.slice(4);
    else if (line.startsWith('event: ')) event.kind = line.slice(7);
    else if (line.startsWith('data: ')) event.data = line.slice(6);
  }
  if (event.id) on.id?.(event.id);
  if (event.kind) on.event({ ...JSON.parse(event.data), kind: event.kind });
}
