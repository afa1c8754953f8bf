/** The requests of a client, except the acquire and the requests of a lease. */
import { Call } from './calls.js';
import { Lease, Part } from './lease.js';
/** A resource's name as a part of a path. */
export declare function encoded(resource: string): string;
export declare function ofBreaks(resource: string, lease: object): Call;
export declare function ofResource(operation: string, resource: string): Call;
export declare function ofRecord(operation: string, resource: string, method: string): Call;
/** A request under the token of one resource. */
export declare function ofPart(operation: string, { resource, token, proof }: Lease | Part, method: string): Call;
