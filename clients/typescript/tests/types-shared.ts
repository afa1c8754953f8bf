// The Client that fencelock/testing returns is the Client of the package, in each module system and across both: compiled by a test, and not run.
import { Client } from 'fencelock';
import { Service } from 'fencelock/testing';

export let locks: Client;

export async function start(): Promise<void> {
  locks = (await Service.start()).client();
}
