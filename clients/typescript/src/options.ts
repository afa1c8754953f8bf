/** The options of a client and of its calls, and what is refused before anything is sent. */

import { shown, Unavailable } from './errors.js';
import { KeepOptions } from './lease.js';
import { Fetch, Signal } from './platform.js';
import { encoded } from './requests.js';

/** A call that failed and is repeated. */
export interface Retry {
  /** Of the last try. */
  readonly error: Unavailable;
  /** So far. */
  readonly tries: number;
  /** Milliseconds since the first failure that still lasts. */
  readonly failing: number;
  /** Milliseconds before the next try. */
  readonly pause: number;
}

export type Bearer = string | (() => string | Promise<string>);

/** Settings of a client; times in milliseconds. */
export interface ClientOptions {
  /** The caller's credential, or what is called for it before each request. White space around it is dropped. If the function
   * fails, or takes longer than `timeout`, that is a try that failed: it is repeated for as long as the client is patient, and a lease
   * stays alive meanwhile until it ends. Its last failure is the `cause` of the Unavailable. */
  bearer?: Bearer | undefined;
  /** A public label that leases show. */
  holder?: string | undefined;
  /** The most that one try at one server takes, beyond what it waits in the queue; 5000. A try ends
   * earlier when its answer is overdue by what answers have taken: the next server is asked then. */
  timeout?: number | undefined;
  /** For how long a call is repeated that fails, from its first failure: that no server responds,
   * or none has a quorum; 15000. Then it rejects with Unavailable. Every server is asked at least
   * once; a wait in the queue is no failure. An acquire with `wait` ends a second after it at most, whatever
   * the servers do, and a lease that is kept alive is extended for as long as it lives. */
  patience?: number | undefined;
  /** How long one request waits in the queue at the longest; 45000. A longer wait is several
   * requests, which keep the place. Whole seconds, less than the time limits of proxies: 60 in
   * nginx and most load balancers of clouds, 50 in Debian's HAProxy, 15 in Envoy. */
  poll?: number | undefined;
  /** How many requests may be under way to a server before further ones (acquires with a `wait` of 0, extends and
   * releases) gather for up to 5 ms, to be sent together in one POST /locks/batch; 2. Each has its own outcome and time
   * limit. 0 sends every such call in a batch, and a negative number none. */
  batchAfter?: number | undefined;
  /** Called for every try that failed and is repeated. What it throws is dropped. */
  onRetry?: ((retry: Retry) => void) | undefined;
  /** Sends the requests: a fetch with another dispatcher, for TLS of one's own. */
  fetch?: Fetch | undefined;
}

/** What to acquire; times in milliseconds. What is left out is left to the service. */
export interface AcquireOptions {
  /** How long the lease lives unless it is extended. */
  ttl?: number | undefined;
  /** How long to wait in the queue: 0 tries once; without it, for as long as it takes. */
  wait?: number | undefined;
  /** For how long this call is repeated that fails, instead of the client's patience: an acquire with a shorter `wait`, or none, goes on for so long, too. */
  patience?: number | undefined;
  /** From the grant, for how long the resource stays taken though it is released; at most the TTL. */
  minHold?: number | undefined;
  /** From the grant, after which the lease is not extended. */
  maxHold?: number | undefined;
  /** Takes one of this many slots of the resource, 1 to 32, which `lease.resource` names and
   * `lease.slot` numbers, each with tokens of its own: a semaphore. */
  slots?: number | undefined;
  /** A public label that the lease shows instead of the client's. */
  holder?: string | undefined;
  /** A JSON value that the lease shows to all callers. */
  metadata?: unknown;
  /** Aborted, a wait for the lease ends with the signal's reason. A timeout (`AbortSignal.timeout`) ends it with Held, with the holder,
   * or with Unavailable, whichever it waited for, and is its `cause`; that may take a second more. */
  signal?: Signal | undefined;
}

export type LockOptions = AcquireOptions & KeepOptions;

export interface WatchOptions {
  /** Aborted, the watch rejects with the signal's reason. */
  signal?: Signal | undefined;
}

const CLIENT_OPTIONS = ['bearer', 'holder', 'timeout', 'patience', 'poll', 'batchAfter', 'onRetry', 'fetch'];

/** Refuses what JavaScript lets through. */
export function checkClientOptions(options: ClientOptions): void {
  refuseUnknown(options, CLIENT_OPTIONS);
  for (const name of ['timeout', 'patience', 'poll'] as const) checkMilliseconds(name, options[name]);
  for (const [name, types] of [['bearer', ['string', 'function']], ['batchAfter', ['number']], ['holder', ['string']], ['onRetry', ['function']], ['fetch', ['function']]] as const) {
    const value: unknown = options[name];
    if (value !== undefined && !types.some((type) => type === typeof value)) throw new TypeError(`${name} must be a ${types.join(' or a ')}, not ${typeof value}`);
  }
}

export function refuseUnknown(options: object, known: readonly string[]): void {
  if (typeof options !== 'object' || options === null) throw new TypeError(`options must be an object, not ${options === null ? 'null' : typeof options}`);
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown) throw new TypeError(`unknown option ${shown(unknown)}: the options are ${known.join(', ')}`);
}

function checkMilliseconds(name: string, value: unknown): void {
  if (value === undefined) return;
  if (typeof value !== 'number') throw new TypeError(`${name} must be a number of milliseconds, not ${typeof value}`);
  if (!(value >= 0)) throw new RangeError(`${name} must be 0 milliseconds or more, not ${value}`);
}

const OPTIONS = ['ttl', 'wait', 'patience', 'minHold', 'maxHold', 'slots', 'holder', 'metadata', 'signal', 'margin', 'onLost'];

/** Refuses what JavaScript lets through, before anything is sent. */
export function checkOptions(options: LockOptions, names: readonly string[]): void {
  refuseUnknown(options, OPTIONS);
  for (const name of ['ttl', 'wait', 'patience', 'minHold', 'maxHold', 'margin'] as const) checkMilliseconds(name, options[name]);
  const { ttl, minHold, maxHold, slots, holder } = options;
  if (ttl !== undefined) checkRange('ttl', ttl, 100, DAY);
  if (minHold !== undefined && ttl !== undefined) checkRange('minHold', minHold, 0, ttl);
  if (maxHold !== undefined) checkRange('maxHold', maxHold, ttl ?? 0, 3650 * DAY);
  if (slots !== undefined && names.length > 1) throw new TypeError('slots are of one resource');
  if (slots !== undefined && !(Number.isInteger(slots) && slots >= 1 && slots <= 32)) throw new RangeError(`slots must be a whole number from 1 to 32, not ${slots}`);
  if (holder !== undefined) checkLabel('holder', holder, 0);
}

const DAY = 86_400_000;
const LONGEST_NAME = 256; // bytes, also of a holder
const MOST_RESOURCES = 16;

function checkRange(name: string, value: number, least: number, most: number): void {
  if (!(value >= least && value <= most)) throw new RangeError(`${name} must be ${least} to ${most} milliseconds, not ${value}`);
}

function checkLabel(what: string, text: unknown, least: number): void {
  if (typeof text !== 'string') throw new TypeError(`${what} must be a string, not ${typeof text}`);
  const { length } = new TextEncoder().encode(text);
  if (length < least || length > LONGEST_NAME) throw new RangeError(`${what} must have ${least} to ${LONGEST_NAME} bytes, not ${length}`);
  if (/[\0-\x1f\x7f-\x9f]/.test(text)) throw new RangeError(`${what} must have no control characters`);
}

export function namesOf(resource: string | readonly string[]): readonly string[] {
  if (typeof resource !== 'string' && !Array.isArray(resource)) throw new TypeError(`a resource must be a string or an array of strings, not ${typeof resource}`);
  const names: readonly string[] = typeof resource === 'string' ? [resource] : [...resource];
  if (names.length === 0) throw new TypeError('name a resource');
  const wrong = names.find((name: unknown) => typeof name !== 'string');
  if (wrong !== undefined) throw new TypeError(`a resource must be a string, not ${typeof wrong}`);
  for (const name of names) {
    encoded(name);
    checkLabel('a resource', name, 1);
  }
  if (names.length > MOST_RESOURCES) throw new RangeError(`a lease is of ${MOST_RESOURCES} resources at most, not ${names.length}`);
  if (new Set(names).size < names.length) throw new RangeError('a lease names each of its resources once');
  return names;
}
