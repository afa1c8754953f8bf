"use strict";
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
Object.defineProperty(exports, "__esModule", { value: true });
exports.Service = void 0;
const client_js_1 = require("./client.js");
const clock_js_1 = require("./clock.js");
const errors_js_1 = require("./errors.js");
const PATIENCE = 30000; // milliseconds for the program to start and to end, and for awaitWaiters
const CLOSING = 5000; // milliseconds for the clients of a test to close, since their work may never end
const NOT_LOST = /^GET \/(healthz|events)/; // probes and streams of events, which the client sends by itself
/** A process of the lock service, on a port of its own. */
class Service {
    /** Its URL, for clients and for programs under test. */
    url;
    #program;
    #proxy;
    #others;
    #clients = [];
    constructor(program, proxy) {
        this.#program = program;
        this.#proxy = proxy;
        this.url = `http://127.0.0.1:${proxy.port}`;
        this.#others = new client_js_1.Client(`http://127.0.0.1:${program.port}`, { holder: 'another process', patience: PATIENCE });
    }
    /** Starts a service. It ends with the test whose context it gets, or by `stop`. Rejects if the program cannot be started. */
    static async start(t, options = {}) {
        const program = await Program.start(options);
        const service = new Service(program, await Proxy.start(program.port));
        t?.after(() => service.stop());
        return service;
    }
    /** Ends the service, and the clients of `client`. */
    async stop() {
        const closing = Promise.all([...this.#clients, this.#others].map((client) => client.close()));
        await (0, clock_js_1.within)(closing, CLOSING, () => new Error('work goes on')).catch(() => { });
        this.#proxy.stop();
        await this.#program.stop();
    }
    /** A client of the service, which is closed with it. */
    client(options = {}) {
        const client = new client_js_1.Client(this.url, options);
        this.#clients.push(client);
        return client;
    }
    /** Ends the lease of a resource now, as if its time to live had passed. Its holder learns of it with its next extend, after
     * a third of its TTL at most. Rejects if no lease holds the resource. */
    async end(resource) {
        try {
            await this.#others.breakAny(resource);
        }
        catch (error) {
            throw error instanceof errors_js_1.Refused ? Object.assign(new Error(`no lease holds ${resource}`), { cause: error }) : error;
        }
    }
    /** Lets the service carry out the next request, and then closes the connection instead of passing on the response. Two calls
     * lose the responses to two requests. */
    loseNextResponse() {
        this.#proxy.lose++;
    }
    /** How many responses were lost. */
    get lost() {
        return this.#proxy.lost;
    }
    /** Acquires the resources for another process, which holds them until its `release`, or for an hour. Rejects if one of them
     * is held. */
    async hold(...resources) {
        let lease;
        try {
            lease = await this.#others.acquire(resources, { ttl: 3600000, wait: 0, patience: PATIENCE });
        }
        catch (error) {
            throw error instanceof errors_js_1.Held ? Object.assign(new Error(`another process cannot hold ${resources.join(', ')}: it is held`), { cause: error }) : error;
        }
        return { token: lease.parts[0]?.token ?? 0, release: () => lease.release() };
    }
    /** Waits until `n` requests wait for the resource. */
    async awaitWaiters(resource, n = 1) {
        for (const end = (0, clock_js_1.now)() + PATIENCE; (await this.#others.inspect(resource)).waiters < n; await (0, clock_js_1.sleep)(10)) {
            if ((0, clock_js_1.now)() > end)
                throw new Error(`fewer than ${n} requests wait for ${resource}`);
        }
    }
}
exports.Service = Service;
const host = () => globalThis.process;
/** A module of Node, by a name that bundlers for browsers do not see. */
const node = async (name) => (await Promise.resolve().then(() => require(/* @vite-ignore */ `node:${name}`)));
/** The process of the service, or of the container that it runs in. It ends with this process. */
class Program {
    port;
    #process;
    #ended;
    #remove;
    #kill = () => this.#process.kill('SIGTERM');
    constructor(process, port, ended, remove) {
        this.port = port;
        this.#process = process;
        this.#ended = ended;
        this.#remove = remove;
        host().once('exit', this.#kill);
    }
    static async start({ ttl = 1500, program = host().env['FENCELOCK_PROGRAM'] }) {
        const [{ mkdtemp, rm }, { join }, { tmpdir }] = await Promise.all([node('fs/promises'), node('path'), node('os')]);
        const folder = await mkdtemp(join(tmpdir(), 'fencelock-testing-'));
        const remove = () => rm(folder, { recursive: true, force: true });
        const settings = {
            FENCELOCK_DATA: join(folder, 'fencelock.db'), FENCELOCK_LISTEN: '127.0.0.1:0', FENCELOCK_ADMIN_LISTEN: '127.0.0.1:0',
            FENCELOCK_BOOTSTRAP: 'new', FENCELOCK_DEFAULT_TTL: `${ttl}ms`, FENCELOCK_MAX_TTL: '24h',
        };
        try {
            const ways = [[program || 'fencelock', 'serve']];
            if (!program)
                ways.push(inContainer(settings));
            for (const [command, ...args] of ways) {
                const running = await spawned(command, args, settings);
                if (running)
                    return new Program(running.process, await listening(running), running.ended, remove);
            }
            throw new Error('fencelock cannot be started: put it into PATH, name it in FENCELOCK_PROGRAM, or build its container image');
        }
        catch (error) {
            await remove();
            throw error;
        }
    }
    async stop() {
        host().off('exit', this.#kill);
        this.#kill();
        await (0, clock_js_1.within)(this.#ended, PATIENCE, () => new Error('it does not end')).catch(() => this.#process.kill('SIGKILL'));
        await this.#ended;
        await this.#remove();
    }
}
/** Starts a command without the FENCELOCK variables of this process; undefined if the command does not exist. */
async function spawned(command, args, settings) {
    const { spawn } = await node('child_process');
    const others = Object.entries(host().env).filter(([name]) => !name.startsWith('FENCELOCK_'));
    const process = spawn(command, args, { env: { ...Object.fromEntries(others), ...settings }, stdio: ['ignore', 'pipe', 'pipe'] });
    const ended = new Promise((end) => process.once('close', () => end()));
    const failure = await new Promise((done) => {
        process.once('spawn', () => done(undefined));
        process.once('error', done);
    });
    if (failure && failure.code !== 'ENOENT')
        throw failure;
    return failure ? undefined : { process, ended };
}
/** The port on which a process says that it listens. Its later output is read, too, so that it never blocks on a full pipe. */
async function listening({ process, ended }) {
    let said = '';
    const port = new Promise((found) => {
        for (const output of [process.stdout, process.stderr]) {
            output.on('data', (data) => {
                if (said.length < 1 << 16)
                    said += data.toString('utf8');
                const line = /"msg":"listening","addr":"[^"]*:(\d+)"/.exec(said);
                if (line)
                    found(Number(line[1]));
            });
        }
    });
    const failed = () => new Error(`fencelock did not start:\n${said}`);
    try {
        return await (0, clock_js_1.within)(Promise.race([port, ended.then(() => Promise.reject(failed()))]), PATIENCE, failed);
    }
    catch (error) {
        process.kill('SIGTERM');
        throw error;
    }
}
/** The command that runs the service in a container which shares this host's network. */
function inContainer(settings) {
    const variables = Object.entries({ ...settings, FENCELOCK_DATA: '/tmp/fencelock.db' }).flatMap(([name, value]) => ['--env', `${name}=${value}`]);
    return ['docker', 'run', '--rm', '--network', 'host', '--tmpfs', '/tmp', ...variables, host().env['FENCELOCK_IMAGE'] || 'fencelock', 'serve'];
}
/** Stands between the clients and the service, to lose responses. */
class Proxy {
    lose = 0;
    lost = 0;
    #sockets = new Set();
    #server;
    constructor(server) {
        this.#server = server;
    }
    static async start(service) {
        const { connect, createServer } = await node('net');
        const server = createServer({ noDelay: true }, (client) => proxy.#carry(client, connect({ port: service, host: '127.0.0.1', noDelay: true })));
        const proxy = new Proxy(server);
        await new Promise((done, failed) => server.once('error', failed).listen(0, '127.0.0.1', done));
        return proxy;
    }
    get port() {
        return this.#server.address().port;
    }
    stop() {
        this.#server.close();
        for (const socket of this.#sockets)
            socket.destroy();
    }
    /** Carries bytes both ways until one side ends. On a connection a client sends a request only after it has read the response
     * to the last one. So the next bytes of the service after a request that is to lose its response are that response. */
    #carry(client, service) {
        let loses = false;
        const end = () => {
            for (const socket of [client, service])
                socket.destroy();
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
