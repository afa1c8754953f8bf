// The service of fencelock/testing under orders, a line of JSON each: internal/clienttest.
import { createInterface } from 'node:readline';

import { Service } from '../dist/esm/testing.js';

const service = await Service.start();
const others = new Map();
const orders = {
  end: (resource) => service.end(resource),
  lose: () => service.loseNextAnswer(),
  await: (resource) => service.awaitWaiters(resource),
  hold: (resource) => void others.set(resource, service.hold(resource)),
  let: (resource) => others.get(resource).release(),
};
const say = () => process.stdout.write(`${JSON.stringify({ url: service.url })}\n`);
say();
for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, resource } = JSON.parse(line);
  await orders[what](resource);
  say();
}
await service.stop();
