/** The requests of a client, except the acquire and the requests of a lease. */

import { Call } from './calls.js';
import { Lease, Part } from './lease.js';

/** A resource's name as a part of a path. */
export function encoded(resource: string): string {
  if (typeof resource !== 'string') throw new TypeError(`a resource must be a string, not ${typeof resource}`);
  try {
    return encodeURIComponent(resource);
  } catch {
    throw new TypeError('a resource must be valid Unicode, without half a surrogate pair');
  }
}

export function ofBreaks(resource: string, lease: object): Call {
  encoded(resource); // refuses half a surrogate pair
  return { operation: 'break', resource, method: 'POST', path: '/breaks', body: () => ({ resource, ...lease }) };
}

export function ofResource(operation: string, resource: string): Call {
  const name = encoded(resource);
  // The header repeats the name, because proxies may rewrite the path.
  return { operation, resource, method: 'GET', path: `/locks/${name}`, headers: { 'Fencelock-Resource': name } };
}

export function ofRecord(operation: string, resource: string, method: string): Call {
  const name = encoded(resource);
  return { operation, resource, method, path: `/guarded/${name}`, headers: { 'Fencelock-Resource': name } };
}

/** A request under the token of one resource. */
export function ofPart(operation: string, { resource, token, proof }: Lease | Part, method: string): Call {
  const call = ofRecord(operation, resource, method);
  const headers: Record<string, string> = { ...call.headers, 'Fencing-Token': String(token) };
  if (proof) headers['Fencing-Proof'] = proof;
  return { ...call, headers };
}
