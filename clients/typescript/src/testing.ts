/** The real lock service, for the tests of an application in Node.
 *
 *     import { Service } from 'fencelock/testing';
 *
 *     test('a deposit', async (t) => {
 *       const service = await Service.start(t);              // ends with the test of node:test
 *       const locks = service.client();
 *       await service.end('accounts/1');                     // as if its time to live had passed
 *       service.loseNextResponse();                          // of a request that was carried out
 *       const other = await service.hold('accounts/1');      // another process has it
 *       await other.release();
 *     });
 *
 * It starts the program `fencelock`, which keeps its locks in a temporary file and is ready in a tenth of a second: the
 * `program` of `start`, the one that the variable FENCELOCK_PROGRAM names, the one in PATH, or the container image that FENCELOCK_IMAGE
 * names (`fencelock` unless set). So a test meets every check, limit and refusal of the service.
 *
 * A lease without a `ttl` lives for 1.5 s unless it is extended, so that whoever keeps it alive notices within half a second
 * that it was ended. */

import { Client } from './client.js';
import { now, sleep, within } from './clock.js';
import { Held, Refused } from './errors.js';
import { Lease } from './lease.js';
import { ClientOptions } from './options.js';

/** The part of a test's context that registers a clean-up, in node:test or another runner. */
export interface TestContext {
  after(f: () => Promise<void> | void): void;
}

export interface ServiceOptions {
  /** The time to live of leases that are acquired without one, in milliseconds; 1500. */
  ttl?: number | undefined;
  /** The path of the program. */
  program?: string | undefined;
}

/** A lease of another process. */
export interface Other {
  /** The fencing token of its first resource. */
  readonly token: number;
  /** Ends the lease. The next in the queue gets the resources. */
  release(): Promise<void>;
}

const PATIENCE = 30_000; // milliseconds for the program to start and to end, and for awaitWaiters
const CLOSING = 5000; // milliseconds for the clients of a test to close, since their work may never end
const NOT_LOST = /^GET \/(healthz|events)/; // probes and streams of events, which the client sends by itself

/** A process of the lock service, on a port of its own. */
export class Service {
  /** Its URL, for clients and for programs under test. */
  readonly url: string;
  #program: Program;
  #proxy: Proxy;
  #others: Client;
  #clients: Client[] = [];

  private constructor(program: Program, proxy: Proxy) {
    this.#program = program;
    this.#proxy = proxy;
    this.url = `http://127.0.0.1:${proxy.port}`;
    this.#others = new Client(`http://127.0.0.1:${program.port}`, { holder: 'another process', patience: PATIENCE });
  }

  /** Starts a service. It ends with the test whose context it gets, or by `stop`. Rejects if the program cannot be started. */
  static async start(t?: TestContext, options: ServiceOptions = {}): Promise<Service> {
    const program = await Program.start(options);
    const service = new Service(program, await Proxy.start(program.port));
    t?.after(() => service.stop());
    return service;
  }

  /** Ends the service, and the clients of `client`. */
  async stop(): Promise<void> {
    const closing = Promise.all([...this.#clients, this.#others].map((client) => client.close()));
    await within(closing, CLOSING, () => new Error('work goes on')).catch(() => {});
    this.#proxy.stop();
    await this.#program.stop();
  }

  /** A client of the service, which is closed with it. */
  client(options: ClientOptions = {}): Client {
    const client = new Client(this.url, options);
    this.#clients.push(client);
    return client;
  }

  /** Ends the lease of a resource now, as if its time to live had passed. Its holder learns of it with its next extend, after
   * a third of its TTL at most. Rejects if no lease holds the resource. */
  async end(resource: string): Promise<void> {
    try {
      await this.#others.breakAny(resource);
    } catch (error) {
      throw error instanceof Refused ? Object.assign(new Error(`no lease holds ${resource}`), { cause: error }) : error;
    }
  }

  /** Lets the service carry out the next request, and then closes the connection instead of passing on the response. Two calls
   * lose the responses to two requests. */
  loseNextResponse(): void {
    this.#proxy.lose++;
  }

  /** How many responses were lost. */
  get lost(): number {
    return this.#proxy.lost;
  }

  /** Acquires the resources for another process, which holds them until its `release`, or for an hour. Rejects if one of them
   * is held. */
  async hold(...resources: string[]): Promise<Other> {
    let lease: Lease;
    try {
      lease = await this.#others.acquire(resources, { ttl: 3_600_000, wait: 0, patience: PATIENCE });
    } catch (error) {
      throw error instanceof Held ? Object.assign(new Error(`another process cannot hold ${resources.join(', ')}: it is held`), { cause: error }) : error;
    }
    return { token: lease.parts[0]?.token ?? 0, release: () => lease.release() };
  }

  /** Waits until `n` requests wait for the resource. */
  async awaitWaiters(resource: string, n = 1): Promise<void> {
    for (const end = now() + PATIENCE; (await this.#others.inspect(resource)).waiters < n; await sleep(10)) {
      if (now() > end) throw new Error(`fewer than ${n} requests wait for ${resource}`);
    }
  }
}

/** The parts of Node that this module uses, declared here because not every project has Node's types. */
interface Process {
  readonly stdout: Stream;
  readonly stderr: Stream;
  kill(signal?: string): void;
  once(event: string, f: (about: Error & { code?: string }) => void): void;
}
interface Stream {
  on(event: string, f: (data: { toString(encoding?: string): string }) => void): void;
}
interface Socket extends Stream {
  write(data: unknown): void;
  destroy(): void;
}
interface Host {
  readonly env: Readonly<Record<string, string | undefined>>;
  once(event: 'exit', f: () => void): void;
  off(event: 'exit', f: () => void): void;
}

const host = (): Host => (globalThis as unknown as { process: Host }).process;

/** A module of Node, by a name that bundlers for browsers do not see. */
const node = async (name: string) => (await import(/* @vite-ignore */ `node:${name}`)) as any;

/** The process of the service, or of the container that it runs in. It ends with this process. */
class Program {
  readonly #process: Process;
  readonly #ended: Promise<void>;
  readonly #remove: () => Promise<void>;
  readonly #kill = (): void => this.#process.kill('SIGTERM');

  private constructor(process: Process, readonly port: number, ended: Promise<void>, remove: () => Promise<void>) {
    this.#process = process;
    this.#ended = ended;
    this.#remove = remove;
    host().once('exit', this.#kill);
  }

  static async start({ ttl = 1500, program = host().env['FENCELOCK_PROGRAM'] }: ServiceOptions): Promise<Program> {
    const [{ mkdtemp, rm }, { join }, { tmpdir }] = await Promise.all([node('fs/promises'), node('path'), node('os')]);
    const folder: string = await mkdtemp(join(tmpdir(), 'fencelock-testing-'));
    const remove = () => rm(folder, { recursive: true, force: true }) as Promise<void>;
    const settings = {
      FENCELOCK_DATA: join(folder, 'fencelock.db') as string, FENCELOCK_LISTEN: '127.0.0.1:0', FENCELOCK_ADMIN_LISTEN: '127.0.0.1:0',
      FENCELOCK_BOOTSTRAP: 'new', FENCELOCK_DEFAULT_TTL: `${ttl}ms`, FENCELOCK_MAX_TTL: '24h',
    };
    try {
      const ways: [string, ...string[]][] = [[program || 'fencelock', 'serve']];
      if (!program) ways.push(inContainer(settings));
      for (const [command, ...args] of ways) {
        const running = await spawned(command, args, settings);
        if (running) return new Program(running.process, await listening(running), running.ended, remove);
      }
      throw new Error('fencelock cannot be started: put it into PATH, name it in FENCELOCK_PROGRAM, or build its container image');
    } catch (error) {
      await remove();
      throw error;
    }
  }

  async stop(): Promise<void> {
    host().off('exit', this.#kill);
    this.#kill();
    await within(this.#ended, PATIENCE, () => new Error('it does not end')).catch(() => this.#process.kill('SIGKILL'));
    await this.#ended;
    await this.#remove();
  }
}

interface Running {
  readonly process: Process;
  readonly ended: Promise<void>;
}

/** Starts a command without the FENCELOCK variables of this process; undefined if the command does not exist. */
async function spawned(command: string, args: string[], settings: Record<string, string>): Promise<Running | undefined> {
  const { spawn } = await node('child_process');
  const others = Object.entries(host().env).filter(([name]) => !name.startsWith('FENCELOCK_'));
  const process = spawn(command, args, { env: { ...Object.fromEntries(others), ...settings }, stdio: ['ignore', 'pipe', 'pipe'] }) as Process;
  const ended = new Promise<void>((end) => process.once('close', () => end()));
  const failure = await new Promise<(Error & { code?: string }) | undefined>((done) => {
    process.once('spawn', () => done(undefined));
    process.once('error', done);
  });
  if (failure && failure.code !== 'ENOENT') throw failure;
  return failure ? undefined : { process, ended };
}

/** The port on which a process says that it listens. Its later output is read, too, so that it never blocks on a full pipe. */
async function listening({ process, ended }: Running): Promise<number> {
  let said = '';
  const port = new Promise<number>((found) => {
    for (const output of [process.stdout, process.stderr]) {
      output.on('data', (data) => {
        if (said.length < 1 << 16) said += data.toString('utf8');
        const line = /"msg":"listening","addr":"[^"]*:(\d+)"/.exec(said);
        if (line) found(Number(line[1]));
      });
    }
  });
  const failed = () => new Error(`fencelock did not start:\n${said}`);
  try {
    return await within(Promise.race([port, ended.then(() => Promise.reject(failed()))]), PATIENCE, failed);
  } catch (error) {
    process.kill('SIGTERM');
    throw error;
  }
}

/** The command that runs the service in a container which shares this host's network. */
function inContainer(settings: Record<string, string>): [string, ...string[]] {
  const variables = Object.entries({ ...settings, FENCELOCK_DATA: '/tmp/fencelock.db' }).flatMap(([name, value]) => ['--env', `${name}=${value}`]);
  return ['docker', 'run', '--rm', '--network', 'host', '--tmpfs', '/tmp', ...variables, host().env['FENCELOCK_IMAGE'] || 'fencelock', 'serve'];
}

/** Stands between the clients and the service, to lose responses. */
class Proxy {
  lose = 0;
  lost = 0;
  #sockets = new Set<Socket>();
  #server: { close(): void; address(): { port: number } };

  private constructor(server: { close(): void; address(): { port: number } }) {
    this.#server = server;
  }

  static async start(service: number): Promise<Proxy> {
    const { connect, createServer } = await node('net');
    const server = createServer({ noDelay: true }, (client: Socket) => proxy.#carry(client, connect({ port: service, host: '127.0.0.1', noDelay: true })));
    const proxy = new Proxy(server);
    await new Promise<void>((done, failed) => server.once('error', failed).listen(0, '127.0.0.1', done));
    return proxy;
  }

  get port(): number {
    return this.#server.address().port;
  }

  stop(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Carries bytes both ways until one side ends. On a connection a client sends a request only after it has read the response
   * to the last one. So the next bytes of the service after a request that is to lose its response are that response. */
  #carry(client: Socket, service: Socket): void {
    let loses = false;
    const end = () => {
      for (const socket of [client, service]) socket.destroy();
    };
    for (const socket of [client, service]) {
      this.#sockets.add(socket);
      socket.on('error', end);
      socket.on('close', () => {
        this.#sockets.delete(socket);
        end();
      });
    }
    client.on('data', (data) => {
      if (!loses && this.lose > 0 && !NOT_LOST.test(data.toString('latin1'))) {
        this.lose--;
        this.lost++;
        loses = true;
      }
      service.write(data);
    });
    service.on('data', (data) => (loses ? end() : client.write(data)));
  }
}
