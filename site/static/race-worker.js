// A client of the console's race, whose requests go to the page instead of a server.
const replies = new Map();
let calls = 0;

self.fetch = (path, { method, headers, body }) => new Promise((resolve) => {
  replies.set(++calls, resolve);
  postMessage({ call: calls, method, path, headers, body });
});

addEventListener('message', (event) => {
  const { reply, status, body } = event.data;
  if (!reply) return; // it is for the client
  event.stopImmediatePropagation();
  replies.get(reply)({ status, json: async () => body });
});

importScripts('console/race-client.js');
