// The service for the tests of an application, as one would use it. FENCELOCK_PROGRAM names the program.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chmod, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { test } from 'node:test';

import { Held, LeaseLost, Refused } from '../dist/index.mjs';
import { Service } from '../dist/testing.mjs';

const PATIENT = { timeout: 30_000, patience: 30_000 }; // long, for a busy machine
const now = { wait: 0, patience: 30_000 };

test('an end is noticed', async (t) => {
  const service = await Service.start(t);
  const locks = service.client(PATIENT);
  await assert.rejects(locks.do('a', async (lease, signal) => {
    await service.end('a');
    await once(signal, 'abort');
    assert.ok(lease.lost);
  }, { ttl: 15_000 }), LeaseLost);
  await (await locks.acquire('a', now)).release();
  await assert.rejects(service.end('a'), { message: 'no lease holds a' });
});

test('a lost response is not a lost lease', async (t) => {
  const service = await Service.start(t);
  const locks = service.client(PATIENT);
  service.loseNextResponse();
  const lease = await locks.acquire('a', { ...now, ttl: 60_000 });
  service.loseNextResponse();
  await lease.release();
  assert.equal(service.lost, 2);
  assert.ok((await locks.acquire('a', now)).token > lease.token);
});

test('what another holds is waited for', async (t) => {
  const service = await Service.start(t);
  const locks = service.client(PATIENT);
  const other = await service.hold('a', 'b');
  await assert.rejects(locks.acquire('a', now), (e) => e instanceof Held && e.holder === 'another process' && e.token === other.token);
  await assert.rejects(service.hold('b'), { message: 'another process cannot hold b: it is held' });
  const waiting = locks.acquire('a');
  await service.awaitWaiters('a');
  assert.equal((await locks.inspect('a')).waiters, 1);
  await other.release();
  assert.ok((await waiting).token > other.token);
});

test('it refuses what the service refuses, and keeps records', async (t) => {
  const service = await Service.start(t, { ttl: 60_000 });
  const locks = service.client(PATIENT);
  const lease = await locks.acquire('a', now);
  assert.equal(lease.ttl, 60_000);
  await assert.rejects(locks.breakLock('b', 1), (e) => e instanceof Refused && e.kind === 'lock-not-held');
  await locks.claimRecord(lease);
  assert.equal((await locks.writeRecord(lease, [1])).version, 1);
  const kinds = [];
  for await (const { kind } of locks.history('a')) kinds.push(kind);
  assert.deepEqual(kinds, ['write', 'claim']);
});

test('it leaves nothing behind, also of work that does not end', async (t) => {
  const { TMPDIR } = process.env;
  const folder = await mkdtemp(`${tmpdir()}/fencelock-nothing-`);
  process.env.TMPDIR = folder;
  t.after(async () => {
    TMPDIR === undefined ? delete process.env.TMPDIR : (process.env.TMPDIR = TMPDIR);
    await rm(folder, { recursive: true });
  });
  const service = await Service.start();
  let began;
  const working = new Promise((started) => (began = started));
  service.client().do('a', () => (began(), new Promise(() => {}))).catch(() => {});
  await working;
  assert.equal((await readdir(folder)).length, 1);
  await service.stop();
  assert.deepEqual(await readdir(folder), []);
  await assert.rejects(fetch(service.url));
});

test('a program that does not start says why', async () => {
  await assert.rejects(Service.start(undefined, { program: '/bin/false' }), /fencelock did not start/);
  await assert.rejects(Service.start(undefined, { program: '/no/such/program' }), /put it into PATH/);
});

const DOCKER = (program) => `#!/bin/sh
[ "$1 $2 $3 $4 $5 $6" = "run --rm --network host --tmpfs /tmp" ] || exit 1
shift 6
cd "$(dirname "$0")"
while [ "$1" = --env ]; do export "$2"; shift 2; done
printf %s "$1" >image
FENCELOCK_DATA=$PWD/fencelock.db exec ${program} "$2"
`;

test('without a program it runs the container', async (t) => { // instead of docker, a script with docker's arguments runs the program
  const folder = await mkdtemp(`${tmpdir()}/fencelock-docker-`);
  const { FENCELOCK_PROGRAM: program, PATH } = process.env;
  t.after(async () => {
    delete process.env.FENCELOCK_IMAGE;
    Object.assign(process.env, { FENCELOCK_PROGRAM: program, PATH });
    await rm(folder, { recursive: true });
  });
  await writeFile(`${folder}/docker`, DOCKER(program));
  await chmod(`${folder}/docker`, 0o755);
  delete process.env.FENCELOCK_PROGRAM;
  Object.assign(process.env, { PATH: `${folder}:/usr/bin:/bin`, FENCELOCK_IMAGE: 'registry.example/fencelock:1' });
  const service = await Service.start();
  await (await service.client(PATIENT).acquire('a', now)).release();
  await service.stop();
  assert.equal(await readFile(`${folder}/image`, 'utf8'), 'registry.example/fencelock:1');
});
